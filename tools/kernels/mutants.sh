#!/usr/bin/env bash
# Leaves out each barrier of the kernels in turn: some test must fail, or ThreadSanitizer complain. Prints the score and the
# survivors. Files of kernels/ may be named: tools/kernels/mutants.sh gemm_q4.metal tile.h
set -euo pipefail
cd "$(dirname "$0")/../.."

cargo run --quiet --locked -p lily-host --bin kernel-evidence -- mutants "$@"
