#!/usr/bin/env bash
# Compiles the CUDA text of all kernels for a GPU with Hopper's own ones, also as sanitizers get them and for shapes that few of these
# are made for, and for one without. Needs no GPU; installs NVRTC for itself; exits with 3 where it cannot be had.
set -euo pipefail
cd "$(dirname "$0")/../.."

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check nvidia-cuda-nvrtc || exit 3
cargo run --quiet --locked -p lily-msl --example emit -- kernels "$work" cuda
for options in "sm_90a" "sm_90a --tiny" "sm_90a --tiny --define LILY_COUNTED_BARRIERS" "sm_90a --tiny --shape VALUE_HEADS=16" "sm_80 --tiny"; do
  # shellcheck disable=SC2086  # options are words
  "$work/venv/bin/python" tools/kernels/nvrtc.py "$work/kernels.cu" --arch $options
done
