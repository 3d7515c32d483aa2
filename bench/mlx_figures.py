#!/usr/bin/env python3
"""What MLX-LM's CPU backend does with a checkpoint directory, as one line of JSON: seconds for each length.

The contract of `lily bench` as far as it goes: a process of its own, a warm-up of a few tokens (a full one would take minutes),
prompt token i = (i * 2654435761 mod 2^32) mod vocabulary, then greedy decode steps. MLX's CPU backend runs on one thread,
whatever --threads says. Needs `mlx[cpu]` and `mlx-lm` from PyPI.
"""
import argparse
import json
import pathlib
import resource
import time

import mlx.core as mx
import mlx_lm
from mlx_lm.utils import load_model

WARM_UP = 3


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--lengths", type=lambda text: [int(part) for part in text.split(",")], required=True)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int)
    return parser.parse_args()


def feed(model, cache, tokens):
    """Appends tokens and gives back the most probable next one; only the last row meets lm_head, as in MLX-LM itself."""
    if len(tokens) > 1:
        model(mx.array([tokens[:-1]]), cache=cache)
        mx.eval([part.state for part in cache])
    return int(mx.argmax(model(mx.array([tokens[-1:]]), cache=cache)[0, -1]))


def run(model, vocabulary, length, steps):
    """Seconds of the prefill and of the decode steps, from an empty state."""
    cache = model.make_cache()
    prompt = [i * 2654435761 % 2**32 % vocabulary for i in range(length)]
    start = time.perf_counter()
    token = feed(model, cache, prompt)
    middle = time.perf_counter()
    for _ in range(steps):
        token = feed(model, cache, [token])
    return middle - start, time.perf_counter() - middle


def main():
    args = arguments()
    mx.set_default_device(mx.cpu)
    model, config = load_model(args.model)
    vocabulary = config["text_config"]["vocab_size"]
    run(model, vocabulary, WARM_UP, 1)
    rows = []
    for length in args.lengths:
        prefill, decode = zip(*(run(model, vocabulary, length, args.steps) for _ in range(args.repeats)))
        rows.append({"length": length, "prefill_seconds": prefill, "decode_seconds": decode})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"version": mlx_lm.__version__, "lengths": rows, "steps": args.steps, "peak_memory_bytes": peak}))


if __name__ == "__main__":
    main()
