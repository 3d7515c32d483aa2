#!/usr/bin/env python3
"""What llama.cpp does with a GGUF file, as one line of JSON: prefill and decode seconds for each length.

The same contract as `lily bench`: a process of its own, a warm-up, prompt token i = (i * 2654435761 mod 2^32) mod
vocabulary, then greedy decode steps. llama.cpp runs with its defaults, so its weights are repacked at load. It takes a
prompt in pieces of 512 tokens, so a warm-up of 512 has its shape. Needs llama-cpp-python from PyPI, built from source for
this machine (README.md).
"""
import argparse
import ctypes
import json
import resource
import time

import llama_cpp as llama
import numpy as np


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf")
    parser.add_argument("--lengths", type=lambda text: [int(part) for part in text.split(",")], required=True)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--prefills", type=int, help="prefill only so often, and decode again from a kept state")
    parser.add_argument("--threads", type=int, required=True)
    return parser.parse_args()


WARM_UP = 512


class Sequence:
    """One context for prompts of up to `length` tokens and `steps` more."""

    def __init__(self, model, length, steps, threads):
        settings = llama.llama_context_default_params()
        settings.n_ctx = length + steps + 1
        settings.n_batch = length
        settings.n_threads = settings.n_threads_batch = threads
        self.context = llama.llama_init_from_model(model, settings)
        if not self.context:
            raise SystemExit(f"no context of {settings.n_ctx} tokens")
        self.vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))

    def feed(self, tokens):
        """Appends tokens and gives back the most probable next one."""
        array = (llama.llama_token * len(tokens))(*tokens)
        status = llama.llama_decode(self.context, llama.llama_batch_get_one(array, len(tokens)))
        if status != 0:
            raise SystemExit(f"llama_decode: {status}")
        logits = llama.llama_get_logits_ith(self.context, -1)
        return int(np.ctypeslib.as_array(logits, (self.vocabulary,)).argmax())

    def prefill(self, length):
        """Seconds of a prompt from an empty state, and the token after it."""
        llama.llama_memory_clear(llama.llama_get_memory(self.context), True)
        prompt = [i * 2654435761 % 2**32 % self.vocabulary for i in range(length)]
        start = time.perf_counter()
        token = self.feed(prompt)
        return time.perf_counter() - start, token

    def decode(self, token, steps):
        """Seconds of the steps after a token."""
        start = time.perf_counter()
        for _ in range(steps):
            token = self.feed([token])
        return time.perf_counter() - start

    def kept(self):
        """A copy of the state, for `restore`."""
        size = llama.llama_state_seq_get_size(self.context, 0)
        state = (ctypes.c_uint8 * size)()
        if llama.llama_state_seq_get_data(self.context, state, size, 0) != size:
            raise SystemExit("the state cannot be copied")
        return state

    def restore(self, state):
        llama.llama_memory_clear(llama.llama_get_memory(self.context), True)
        if llama.llama_state_seq_set_data(self.context, state, len(state), 0) == 0:
            raise SystemExit("the state cannot be restored")

    def run(self, length, steps, repeats, prefills):
        """Seconds of the prefills and of the decodes after them."""
        prefill, decode = [], []
        for repeat in range(repeats):
            if repeat < prefills:
                seconds, token = self.prefill(length)
                prefill.append(seconds)
                state = self.kept() if prefills < repeats else None
            else:
                self.restore(state)
            decode.append(self.decode(token, steps))
        return prefill, decode

    def close(self):
        llama.llama_free(self.context)


def main():
    args = arguments()
    quiet = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(quiet, ctypes.c_void_p(0))
    llama.llama_backend_init()
    settings = llama.llama_model_default_params()
    settings.n_gpu_layers = 0
    model = llama.llama_model_load_from_file(args.gguf.encode(), settings)
    if not model:
        raise SystemExit(f"{args.gguf}: cannot be loaded")
    rows = []
    for length in args.lengths:
        sequence = Sequence(model, length, args.steps, args.threads)
        sequence.run(min(length, WARM_UP), args.steps, 1, 1)
        prefill, decode = sequence.run(length, args.steps, args.repeats, args.prefills or args.repeats)
        sequence.close()
        rows.append({"length": length, "prefill_seconds": prefill, "decode_seconds": decode})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"version": llama.__version__, "lengths": rows, "steps": args.steps, "peak_memory_bytes": peak}))


if __name__ == "__main__":
    main()
