#!/usr/bin/env bash
# Prints the folder of a cargo and rustc like the present ones, with the standard library of the targets named:
#
#     PATH="$(tools/cross/toolchain.sh aarch64-apple-darwin):$PATH" cargo check --target aarch64-apple-darwin
#
# rustup gets the libraries where it can reach its server. Where it cannot, they are built from Debian's package of the
# library's source, into a copy of the toolchain in target/cross (root, 5 minutes on 2 cores).
# Exit status 3: neither can be had here.
set -euo pipefail
cd "$(dirname "$0")/../.."

say() { printf 'tools/cross: %s\n' "$*" >&2; }

# The source must be of the very version that rustc is; a new Rust needs the new package's version and sum here.
rust=1.95.0
package=1.95.0+dfsg1-2~bpo13+1
suite=trixie-backports
sum=7b76db5b880a77f9e52975d2baa6209d2f76d2c9c2789515c3088cb960e2c83b

has_std() { compgen -G "$1/lib/rustlib/$2/lib/libstd-*.rlib" >/dev/null; }

stock="$(rustc --print sysroot)"
work="$PWD/target/cross"
copy="$work/toolchain"

missing_in() {
  local target
  for target in "${@:2}"; do
    has_std "$1" "$target" || echo "$target"
  done
}

[[ -z "$(missing_in "$stock" "$@")" ]] || rustup target add "$@" >&2 || say "rustup cannot get the libraries of $*"
if [[ -z "$(missing_in "$stock" "$@")" ]]; then
  echo "$stock/bin"
  exit
fi
if [[ "$("$copy/bin/rustc" --version 2>/dev/null)" == "$(rustc --version)" && -z "$(missing_in "$copy" "$@")" ]]; then
  echo "$copy/bin"
  exit
fi

version="$(rustc --version | cut -d ' ' -f 2)"
if [[ "$version" != "$rust" ]]; then
  say "rustc is $version, but the source package named in $0 is of $rust: name the one of $version there"
  exit 3
fi
if ! command -v apt-get >/dev/null; then
  say "no apt-get to get the library's source with"
  exit 3
fi

# A configuration of apt of its own: the suite is not to become one that the machine installs from.
source="$work/rust-src_$version.deb"
if ! sha256sum --check --status <<<"$sum  $source" 2>/dev/null; then
  rm -rf "$work/apt"
  mkdir -p "$work"/apt/{etc,lists/partial,cache/archives/partial}
  mirror="$(awk '/^URIs:/ {print $2; exit}' /etc/apt/sources.list.d/debian.sources 2>/dev/null || true)"
  if [[ -z "$mirror" ]]; then
    say "/etc/apt/sources.list.d/debian.sources names no mirror to get the library's source from"
    exit 3
  fi
  cat >"$work/apt/etc/rust.sources" <<SOURCES
Types: deb
URIs: $mirror
Suites: $suite
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
SOURCES
  options=(-qq -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$work/apt/etc"
    -o Dir::State::lists="$work/apt/lists" -o Dir::Cache="$work/apt/cache" -o APT::Sandbox::User=root)
  if ! { apt-get "${options[@]}" update && (cd "$work/apt" && apt-get "${options[@]}" download "rust-src=$package"); } >&2; then
    say "Debian's rust-src $package cannot be had from $suite"
    exit 3
  fi
  mv "$work"/apt/rust-src_*.deb "$source"
  rm -rf "$work/apt"
  sha256sum --check --quiet <<<"$sum  $source" >&2
fi

# Hard links where possible: the copy then takes no room.
rm -rf "$copy"
mkdir -p "$copy/lib/rustlib/src/rust"
cp -al "$stock"/{bin,lib} "$copy" 2>/dev/null || cp -a "$stock"/{bin,lib} "$copy"
dpkg --fsys-tarfile "$source" |
  tar -x -C "$copy/lib/rustlib/src/rust" --strip-components=4 "./usr/src/rustc-$version/library"

# cargo builds the standard library together with some crate: here an empty one. -Zbuild-std wants a nightly, or to be
# told that this stable one may.
empty="$work/empty"
rm -rf "$empty"
mkdir -p "$empty/src"
echo '#![no_std]' >"$empty/src/lib.rs"
cat >"$empty/Cargo.toml" <<'MANIFEST'
cargo-features = ["profile-rustflags"]

[package]
name = "empty"
edition = "2024"

[workspace]

[profile.release.package.panic_abort]
rustflags = ["-Cpanic=abort"]
MANIFEST
for target in $(missing_in "$copy" "$@"); do
  say "building the standard library of $target"
  (cd "$empty" && PATH="$copy/bin:$PATH" RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR="$empty/target" cargo build --quiet --release \
    --target "$target" -Zbuild-std=std,panic_unwind,panic_abort,proc_macro,test) >&2
  mkdir -p "$copy/lib/rustlib/$target/lib"
  rm "$empty/target/$target"/release/deps/libempty-*
  cp "$empty/target/$target"/release/deps/lib*.rlib "$copy/lib/rustlib/$target/lib"
done
rm -rf "$empty"
echo "$copy/bin"
