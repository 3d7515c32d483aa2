#!/usr/bin/env bash
# Runs the kernels' tests, and some of the whole model's, as aarch64 code on emulated processors of each instruction set.
# Needs aarch64-linux-gnu-gcc, its C library and qemu-aarch64: Debian's gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and
# qemu-user-static.
set -euo pipefail
cd "$(dirname "$0")/../.."

target=aarch64-unknown-linux-gnu
PATH="$(tools/cross/toolchain.sh "$target"):$PATH"
qemu="$(command -v qemu-aarch64-static || command -v qemu-aarch64)"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$qemu -L /usr/aarch64-linux-gnu"

run() { cargo test --quiet --locked -p lily-cpu --target "$target" "$@"; }

# On `processor`, whose best instruction set must be `best`: a test that finds less than it should passes unseen.
test_on() {
  local processor="$1" best="$2" found
  printf -- '-- %s: %s\n' "$processor" "$best"
  export QEMU_CPU="$processor"
  found="$(run --lib -- --nocapture the_best_is_the_last_available | sed -n 's/.*instruction sets: .*\b\(neon[a-z0-9-]*\)$/\1/p')"
  if [[ "$found" != "$best" ]]; then
    printf 'tools/cross: qemu as %s has %s, not %s\n' "$processor" "${found:-no NEON}" "$best" >&2
    exit 1
  fi
  # Without the elementary functions, plain Rust whose many arguments take minutes here, and without measurements of speed.
  run --lib -- --skip math:: --skip measure::
  run --test bit_identity -- instruction_sets
  run --test reference -- first_tokens
}

test_on cortex-a72 neon
test_on neoverse-n1 neon-dotprod
test_on max neon-i8mm
