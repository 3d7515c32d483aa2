#!/usr/bin/env python3
"""Runs Lily and a peer on one machine and prints medians and ratios.

    bench/compare.py --model DIR --gguf FILE --lengths 128,512,2048 --rounds 5      # llama.cpp
    bench/compare.py --model DIR --mlx --lengths 16 --steps 4 --rounds 1            # MLX-LM, on the very same checkpoint
    bench/compare.py --model DIR --gguf FILE --device cuda --rounds 1 --repeats 3   # both on the GPU

DIR comes from `lily synth`, FILE from bench/synthetic_gguf.py: the same shapes at about the same bits. Each round runs both
engines, each in a process of its own: in turn, or at once on cores of their own (--cores 0,1 2,3), so that a machine whose
speed drifts slows both. Ratios are of the medians. Run it with the Python that has the peer.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lily", default="target/release/lily")
    parser.add_argument("--model", required=True)
    peer = parser.add_mutually_exclusive_group(required=True)
    peer.add_argument("--gguf")
    peer.add_argument("--mlx", action="store_true")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda", "metal"), help="of both")
    parser.add_argument("--simd", help="instructions Lily uses instead of the fastest")
    parser.add_argument("--lengths", default="128,512,2048")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=1, help="of each length within a process")
    parser.add_argument("--peer-options", default="", help="more for the peer's script, as --peer-options='--prefills 1'")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--cores", nargs=2, metavar=("LILY", "PEER"), help="run both at once, each on these")
    return parser.parse_args()


def output_of(command, cores):
    command = ["taskset", "-c", cores, *command] if cores else command
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}")
    return json.loads(done.stdout)


def figures(told):
    """Prefill and decode tokens a second of every repeat, by length."""
    return {
        row["length"]: (
            [row["length"] / seconds for seconds in row["prefill_seconds"]],
            [told["steps"] / seconds for seconds in row["decode_seconds"]],
        )
        for row in told["lengths"]
    }


def shape(args):
    values = {"lengths": args.lengths, "steps": args.steps, "repeats": args.repeats, "threads": args.threads}
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


def read_through(folder):
    """Brings files into the page cache, where the engine that ran before may have taken their place."""
    for path in sorted(path for path in pathlib.Path(folder).iterdir() if path.is_file()):
        with open(path, "rb", buffering=0) as file:
            while file.read(1 << 24):
                pass


def lily(args):
    read_through(args.model)
    simd = ["--simd", args.simd] if args.simd else []
    command = [args.lily, "bench", "--model", args.model, "--device", args.device, *shape(args), *simd, "--json", "-"]
    told = output_of(command, args.cores and args.cores[0])
    return figures({"steps": told["settings"]["steps"], "lengths": told["lengths"]})


def peer(args):
    script, model = ("mlx_figures.py", args.model) if args.mlx else ("llama_cpp_figures.py", args.gguf)
    command = [sys.executable, str(pathlib.Path(__file__).with_name(script)), model, *shape(args)]
    command += ["--gpu"] if args.device != "cpu" else []
    command += shlex.split(args.peer_options)
    return figures(output_of(command, args.cores and args.cores[1]))


def one_round(args, number):
    if args.cores:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            both = [pool.submit(engine, args) for engine in (lily, peer)]
            return tuple(figures.result() for figures in both)
    # Each goes first in every other round: what the first leaves in the page cache must not favour the second.
    if number % 2:
        mine = lily(args)
        return mine, peer(args)
    theirs = peer(args)
    return lily(args), theirs


def table(rounds, name):
    """Medians of both engines and their ratio, a line a length and phase."""
    lines = [f"{'':>8} {'tokens':>7} {'lily':>9} {name:>10} {'ratio':>6}   all, lily | {name}"]
    for index, phase in enumerate(("prefill", "decode")):
        for length in rounds[0][0]:
            ours, theirs = ([value for both in rounds for value in both[side][length][index]] for side in (0, 1))
            if not theirs:
                continue
            left, right = statistics.median(ours), statistics.median(theirs)
            every = " ".join(f"{value:.2f}" for value in ours) + " | " + " ".join(f"{value:.2f}" for value in theirs)
            lines.append(f"{phase:>8} {length:>7} {left:>9.2f} {right:>10.2f} {left / right:>6.2f}   {every}")
    return "\n".join(lines)


def main():
    args = arguments()
    rounds = []
    for number in range(1, args.rounds + 1):
        rounds.append(one_round(args, number))
        load = os.getloadavg()[0]
        print(f"after round {number}, load average {load:.1f}, {args.threads} threads, tokens a second:", flush=True)
        print(table(rounds, "mlx-lm" if args.mlx else "llama.cpp"), flush=True)


if __name__ == "__main__":
    main()
