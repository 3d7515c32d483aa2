#!/usr/bin/env python3
"""Runs Lily and llama.cpp in turn on one machine and prints medians and ratios.

    bench/compare.py --lily target/release/lily --model DIR --gguf FILE --lengths 128,512,2048 --rounds 5

DIR comes from `lily synth`, FILE from bench/synthetic_gguf.py: the same shapes at about the same bits. Each round runs both
engines once, each in a process of its own, so that a machine whose speed drifts slows both; ratios are of the medians. Run it
with the Python that has llama-cpp-python.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lily", default="target/release/lily")
    parser.add_argument("--model", required=True)
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--lengths", default="128,512,2048")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    return parser.parse_args()


def output_of(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}")
    return json.loads(done.stdout)


def lily(args):
    """Prefill and decode tokens a second by length."""
    shape = ["--lengths", args.lengths, "--steps", str(args.steps), "--repeats", "1", "--threads", str(args.threads)]
    told = output_of([args.lily, "bench", "--model", args.model, *shape, "--json", "-"])
    return {row["length"]: (row["prefill_tokens_per_second"], row["decode_tokens_per_second"]) for row in told["lengths"]}


def llama_cpp(args):
    """The same of llama.cpp."""
    script = str(pathlib.Path(__file__).with_name("llama_cpp_figures.py"))
    shape = ["--lengths", args.lengths, "--steps", str(args.steps), "--threads", str(args.threads)]
    told = output_of([sys.executable, script, args.gguf, *shape])
    return {
        row["length"]: (row["length"] / row["prefill_seconds"], told["steps"] / row["decode_seconds"])
        for row in told["lengths"]
    }


def table(rounds):
    """Medians of both engines and their ratio, a line a length and phase."""
    lines = [f"{'':>8} {'tokens':>7} {'lily':>9} {'llama.cpp':>10} {'ratio':>6}   all rounds, lily | llama.cpp"]
    for index, phase in enumerate(("prefill", "decode")):
        for length in rounds[0][0]:
            ours = [mine[length][index] for mine, _ in rounds]
            theirs = [peer[length][index] for _, peer in rounds]
            left, right = statistics.median(ours), statistics.median(theirs)
            every = " ".join(f"{value:.2f}" for value in ours) + " | " + " ".join(f"{value:.2f}" for value in theirs)
            lines.append(f"{phase:>8} {length:>7} {left:>9.2f} {right:>10.2f} {left / right:>6.2f}   {every}")
    return "\n".join(lines)


def main():
    args = arguments()
    rounds = []
    for number in range(1, args.rounds + 1):
        # Each goes first in every other round: what the first leaves in the page cache must not favour the second.
        if number % 2:
            mine, peer = lily(args), llama_cpp(args)
        else:
            peer, mine = llama_cpp(args), lily(args)
        rounds.append((mine, peer))
        load = os.getloadavg()[0]
        print(f"after round {number}, load average {load:.1f}, {args.threads} threads, tokens a second:", flush=True)
        print(table(rounds), flush=True)


if __name__ == "__main__":
    main()
