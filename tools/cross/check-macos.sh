#!/usr/bin/env bash
# Type-checks and lints the whole workspace as macOS builds it, with its tests, some of which only a Mac runs. Nothing is linked, so
# this needs no SDK.
set -euo pipefail
cd "$(dirname "$0")/../.."

target=aarch64-apple-darwin
PATH="$(tools/cross/toolchain.sh "$target"):$PATH"
. tools/cross/c_for_macos.sh
cargo clippy --workspace --all-targets --locked --target "$target" -- -D warnings
