#!/usr/bin/env bash
# Has clang's C++ for OpenCL look at every kernel: real address spaces, no double, no implicit vector conversions. Then asks
# of crates/msl/tests/front_end whether it still refuses what it is to refuse, in the lines that say so.
# Needs clang 19 (Debian 12: apt-get install clang-19), or name another in CLANG.
set -euo pipefail
cd "$(dirname "$0")/../.."

clang="${CLANG:-clang++-19}"
command -v "$clang" >/dev/null || { echo "$clang is not installed: apt-get install clang-19, or set CLANG" >&2; exit 3; }

units="$(mktemp -d)"
trap 'rm -rf "$units"' EXIT
emit() { cargo run --quiet --package lily-msl --example emit -- "$1" "$2" check; }

# The generic address space stays on, or structs can't be copied; lily-msl refuses pointers that name none.
check() {  # UNIT METAL_VERSION
  "$clang" -x clcpp -cl-std=clc++2021 -cl-no-stdinc -target x86_64-linux-gnu -msse2 -fsyntax-only -I crates/msl/shim \
    -Xclang "-cl-ext=-__opencl_c_fp64,-cl_khr_fp64,+cl_khr_fp16" -D__METAL_VERSION__="$2" \
    -Werror -Wall -Wextra -Wdouble-promotion -Wno-unused-function -Wno-unused-const-variable -Wno-undefined-inline \
    -Wno-undefined-internal -Wno-unused-parameter -Wno-missing-braces -Wno-null-dereference -Wno-unknown-pragmas "$1"
}

failed=0
emit kernels "$units/kernels"
for unit in "$units"/kernels/*.cl; do
  for version in 310 400; do
    [[ $version == 310 ]] || grep -q __METAL_VERSION__ "$unit" || continue
    check "$unit" "$version" || { failed=$((failed + 1)); echo "refused: $(basename "$unit" .cl).metal, $version" >&2; }
  done
done

emit crates/msl/tests/front_end "$units/front_end"
for source in crates/msl/tests/front_end/*.metal; do
  name="$(basename "$source" .metal)"
  expected="$(grep -n '// refused' "$source" | cut -d: -f1 || true)"
  found="$(check "$units/front_end/$name.cl" 310 2>&1 | sed -n "s|^kernels/$name.metal:\([0-9]*\):[0-9]*: error.*|\1|p" | sort -nu || true)"
  if [[ "$found" != "$expected" ]]; then
    failed=$((failed + 1))
    echo "$source: errors in lines '$found', expected in '$expected'" >&2
  fi
done
echo "$(find "$units" -name '*.cl' | wc -l) files checked, $failed not as they should be"
((failed == 0))
