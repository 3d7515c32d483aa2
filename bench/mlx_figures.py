#!/usr/bin/env python3
"""What MLX-LM does with a checkpoint directory, as one line of JSON: seconds for each length.

The contract of `lily bench` as far as it goes: a process of its own, a warm-up, prompt token i = (i * 2654435761 mod 2^32)
mod vocabulary, then greedy decode steps, all by MLX-LM's own loop. The warm-up is one of its pieces of a prompt; on the CPU,
where MLX runs on one thread whatever --threads says, three tokens (more would take minutes). Needs `mlx[cpu]` and `mlx-lm` from
PyPI, for --gpu `mlx[cuda13]` or `mlx[cuda12]`.
"""
import argparse
import json
import pathlib
import resource
import time

import mlx.core as mx
import mlx_lm
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model

WARM_UP_ON_CPU, WARM_UP_ON_GPU = 3, 2048


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--lengths", type=lambda text: [int(part) for part in text.split(",")], required=True)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument(
        "--longest-prompt",
        type=int,
        metavar="TOKENS",
        help="do not read longer prompts: fill the cache with random keys and values, and measure decode alone",
    )
    return parser.parse_args()


def filled(model, length):
    """A cache as after a prompt of this length, but for its values."""
    cache = model.make_cache()
    model(mx.array([[0]]), cache=cache)
    for layer in cache:
        if hasattr(layer, "keys"):
            shape = (*layer.keys.shape[:2], length, layer.keys.shape[3])
            layer.keys = mx.random.normal(shape, layer.keys.dtype)
            layer.values = mx.random.normal(shape, layer.values.dtype)
            layer.offset = length
    mx.eval([layer.state for layer in cache])
    return cache


def run(model, cache, prompt, steps, stream):
    """Seconds to the first token after the prompt, and of the steps from there on."""
    start = time.perf_counter()
    tokens = generate_step(mx.array(prompt), model, stream, max_tokens=steps + 1, prompt_cache=cache)
    next(tokens)
    middle = time.perf_counter()
    for _ in range(steps):
        next(tokens)
    return middle - start, time.perf_counter() - middle


def main():
    args = arguments()
    mx.set_default_device(mx.gpu if args.gpu else mx.cpu)
    stream = mx.new_stream(mx.default_device())
    model, config = load_model(args.model)
    vocabulary = config["text_config"]["vocab_size"]
    warm_up = WARM_UP_ON_GPU if args.gpu else WARM_UP_ON_CPU
    rows = []
    for length in args.lengths:
        prompt = [i * 2654435761 % 2**32 % vocabulary for i in range(length)]
        is_read = length <= (args.longest_prompt or length)
        row = {"length": length, "prefill_seconds": [], "decode_seconds": []}
        for repeat in range(args.repeats + 1):
            cache = model.make_cache() if is_read else filled(model, length)
            read = prompt if is_read else prompt[-1:]
            read = read if repeat else read[:warm_up]
            prefill, decode = run(model, cache, read, args.steps, stream)
            if repeat:
                row["prefill_seconds"] += [prefill] if is_read else []
                row["decode_seconds"].append(decode)
        rows.append(row)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"version": mlx_lm.__version__, "lengths": rows, "steps": args.steps, "peak_memory_bytes": peak}))


if __name__ == "__main__":
    main()
