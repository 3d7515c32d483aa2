#!/usr/bin/env bash
# Runs fuzzers one after the other: `fuzz/run.sh MINUTES [TARGET...]`, without a name all of them. It begins with the inputs that
# are kept in corpus/ and writes new ones beside the build. Needs a nightly compiler and cargo-fuzz.
set -euo pipefail
cd "$(dirname "$0")/.."
(($# > 0)) || { echo "usage: $0 MINUTES [TARGET...]" >&2; exit 2; }
seconds=$(($1 * 60))
shift
(($# > 0)) || set -- tool_calls reasoning safetensors_header request_bodies template_inputs grammars

for target; do
  options=(-max_len=4096 -timeout=30 -rss_limit_mb=2500 -malloc_limit_mb=256 -print_final_stats=1)
  case "$target" in
    tool_calls | reasoning) options+=(-dict=fuzz/dictionaries/reply.dict) ;;
    request_bodies | safetensors_header) options+=(-dict="fuzz/dictionaries/$target.dict") ;;
  esac
  found="${CARGO_TARGET_DIR:-fuzz/target}/corpus/$target"
  mkdir -p "$found"
  cargo +nightly fuzz run "$target" "$found" "fuzz/corpus/$target" -- "${options[@]}" -max_total_time="$seconds"
done
