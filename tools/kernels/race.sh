#!/usr/bin/env bash
# Runs the kernels' tests under ThreadSanitizer: no two threads may touch one place with no barrier between them.
# Needs g++ with libtsan, and setarch (util-linux).
set -euo pipefail
cd "$(dirname "$0")/../.."

cargo run --quiet --locked -p lily-host --bin kernel-evidence -- race
