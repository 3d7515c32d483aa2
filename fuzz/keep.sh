#!/usr/bin/env bash
# Puts into corpus/TARGET the fewest inputs, of those kept and those that run.sh has found, that reach what all of them reach; at
# most 40 of them, those that reach most: `fuzz/keep.sh TARGET...`.
set -euo pipefail
cd "$(dirname "$0")/.."
MOST=40

for target; do
  kept="fuzz/corpus/$target"
  chosen="$(mktemp -d)"
  cargo +nightly fuzz run "$target" "$chosen" "$kept" "${CARGO_TARGET_DIR:-fuzz/target}/corpus/$target" -- -set_cover_merge=1 -max_len=4096 -timeout=60
  # Those that reach most are written first.
  find "$chosen" -type f -printf '%T@ %f\n' | sort -n | cut -d' ' -f2 >"$chosen.list"
  # What was kept goes only once there is something in its place.
  [[ -s $chosen.list ]] || { echo "$target: no input reaches anything" >&2; exit 1; }
  rm -r "$kept"
  mkdir "$kept"
  head -n "$MOST" "$chosen.list" | while read -r name; do cp "$chosen/$name" "$kept/$name"; done
  rm -r "$chosen" "$chosen.list"
done
