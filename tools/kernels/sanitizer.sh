#!/usr/bin/env bash
# Every CUDA kernel under NVIDIA's compute-sanitizer, on the GPU that is here: `tools/kernels/sanitizer.sh [TOOL...]`, without a name
# memcheck, racecheck and synccheck. The tests that it runs fail if a kernel of the library did not run, and list those that did.
# LILY_CUDA_CHECKPOINT (docs/nvidia.md) adds the 35B's shapes. What was made elsewhere: LILY_CUDA_TESTS, the tests' program;
# LILY_CUDA_COUNTED, a folder of caches with the code whose barriers are counted. Needs compute-sanitizer and nvidia-smi; the folder
# of temporary files that it names is left, for the logs are there.
set -euo pipefail
cd "$(dirname "$0")/../.."
(($# > 0)) || set -- memcheck racecheck synccheck

work="$(mktemp -d)"
tests="${LILY_CUDA_TESTS:-}"
if [[ -z "$tests" ]]; then
  tests="$(cargo test --quiet --locked -p lily-gpu --features cuda --test cuda --no-run --message-format json |
    python3 -c 'import json, sys; print([m["executable"] for m in map(json.loads, sys.stdin) if m.get("executable")][-1])')"
fi
sizes=(tiny)
[[ -z "${LILY_CUDA_CHECKPOINT:-}" ]] || sizes+=(large)
export CARGO_MANIFEST_DIR="$PWD/crates/gpu" LILY_CUDA_SERIAL=1

test_of() { # SIZE NAME
  [[ "$1" == tiny ]] && echo "kernels::$2" || echo "kernels::large_$2"
}

# racecheck and synccheck do not follow barriers of some of a block's warps (kernels/cuda/meetings.h), which Hopper's kernels have. They
# get code in which each is counted in shared memory, in the place of what the device itself would keep in the folder of caches.
counted="${LILY_CUDA_COUNTED:-}"
if [[ -z "$counted" && "$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader)" == 9.0* ]]; then
  counted="$work/counted"
  mkdir -p "$counted/lily"
  cargo run --quiet --locked -p lily-msl --example emit -- kernels "$work" cuda
  for size in "${sizes[@]}"; do
    XDG_CACHE_HOME="$work/$size" "$tests" --exact "$(test_of "$size" every_kernel_runs)" > /dev/null
    kept=("$work/$size/lily/"*.cubin)
    shapes=(--shape VOCABULARY=16384) # LARGE_VOCABULARY of the test
    [[ "$size" == large ]] || shapes=(--tiny)
    python3 tools/kernels/nvrtc.py "$work/kernels.cu" --arch sm_90a "${shapes[@]}" --define LILY_COUNTED_BARRIERS \
      --output "$counted/lily/$(basename "${kept[0]}")"
  done
fi

failed=0
for tool; do
  options=(--tool "$tool" --error-exitcode 9 --print-limit 100000 --show-backtrace no)
  caches=()
  name="every_kernel_runs"
  case "$tool" in
    # Each range is an allocation of its own there.
    memcheck) options+=(--padding 1024) && name="kernels_keep_to_the_ranges_of_their_dispatches" ;;
    racecheck) [[ -z "$counted" ]] || caches=("XDG_CACHE_HOME=$counted") ;;
    # Its table of barriers is too small by itself, and with 256; docs/nvidia.md says more.
    synccheck) options+=(--num-cuda-barriers 1024) && [[ -z "$counted" ]] || caches=("XDG_CACHE_HOME=$counted") ;;
  esac
  for size in "${sizes[@]}"; do
    log="$work/$tool-$size.log"
    start=$SECONDS
    status=0
    env "${caches[@]}" compute-sanitizer "${options[@]}" "$tests" --exact --nocapture "$(test_of "$size" "$name")" \
      > "$log" 2>&1 || status=$?
    ((status == 0)) || failed=1
    echo "$tool, $size shapes: exit $status after $((SECONDS - start)) s, $log"
    grep -E "SUMMARY|kernels ran|^not run|panicked" "$log" || true
    { grep -oE "at (lily_[a-z0-9_]+)" "$log" || true; } | sort | uniq -c
  done
done
exit "$failed"
