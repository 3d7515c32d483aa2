#!/usr/bin/env bash
# Links the program as macOS runs it, Metal included: with rustc's own linker and stubs of Apple's libraries. Shows that
# every symbol resolves; nothing is run.
# Exit status 3: the list of the C library's symbols, from PyPI, or the standard library cannot be had here.
set -euo pipefail
cd "$(dirname "$0")/../.."

target=aarch64-apple-darwin
work="$PWD/target/cross"
PATH="$(tools/cross/toolchain.sh "$target"):$PATH"
. tools/cross/c_for_macos.sh

# Of Zig, only its list of what macOS's libSystem exports is used.
system="$work/libSystem.tbd"
if [[ ! -s "$system" ]]; then
  zig="$(mktemp -d)"
  trap 'rm -rf "$zig"' EXIT
  if ! { python3 -m venv "$zig" && "$zig/bin/pip" install --quiet --disable-pip-version-check ziglang==0.17.1; } >&2; then
    printf 'tools/cross: PyPI does not give ziglang, whose list of symbols the linker needs\n' >&2
    exit 3
  fi
  mkdir -p "$work"
  cp "$zig"/lib/python3*/site-packages/ziglang/lib/libc/darwin/libSystem.tbd "$system"
fi

rm -rf "$work/sdk"
python3 tools/cross/stub_sdk.py "$work/sdk" "$system"
export SDKROOT="$work/sdk"
export CARGO_TARGET_AARCH64_APPLE_DARWIN_LINKER=rust-lld
export CARGO_TARGET_AARCH64_APPLE_DARWIN_RUSTFLAGS="-Clinker-flavor=ld64.lld"

# Nothing of it will run: the fastest build will do.
plain=(--config 'profile.dev.opt-level=0' --config 'profile.dev.package."*".opt-level=0' --config 'profile.dev.debug=false'
  --config 'profile.dev.package.lily-cpu.opt-level=0')
cargo build "${plain[@]}" --locked --target "$target" -p lily

program="${CARGO_TARGET_DIR:-target}/$target/debug/lily"
if [[ "$(od -An -tx4 -N4 "$program" | tr -d ' ')" != feedfacf ]]; then
  printf 'tools/cross: %s is no Mach-O program\n' "$program" >&2
  exit 1
fi
