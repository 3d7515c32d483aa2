#!/usr/bin/env bash
# Runs the kernels' tests under AddressSanitizer: no thread may leave its buffers and threadgroup arrays.
# Needs g++ with libasan, and setarch (util-linux).
set -euo pipefail
cd "$(dirname "$0")/../.."

cargo run --quiet --locked -p lily-host --bin kernel-evidence -- bounds
