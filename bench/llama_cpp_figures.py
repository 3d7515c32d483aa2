#!/usr/bin/env python3
"""What llama.cpp does with a GGUF file, as one line of JSON: prefill and decode seconds for each length.

The same contract as `lily bench` as far as it goes: a process of its own, a warm-up, prompt token
i = (i * 2654435761 mod 2^32) mod vocabulary. As in llama.cpp's own benchmark, decode steps are fed tokens of the formula too
and draw none. On the CPU it runs with its defaults, so its weights are repacked at load, and a warm-up of a micro-batch has
the shape of what is measured. With --gpu all layers are on the GPU, with flash attention. Needs llama-cpp-python from PyPI,
built from source for this machine (README.md).
"""
import argparse
import ctypes
import json
import os
import resource
import sys
import time

import llama_cpp as llama


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf")
    parser.add_argument("--lengths", type=lambda text: [int(part) for part in text.split(",")], required=True)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--prefills", type=int, help="prefill only so often, and decode again from a kept state")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--micro-batch", type=int, help="tokens computed at once [default: 512, with --gpu 2048]")
    args = parser.parse_args()
    args.micro_batch = args.micro_batch or (2048 if args.gpu else 512)
    return args


class Sequence:
    """One context for prompts of up to `length` tokens and `steps` more."""

    def __init__(self, model, length, args):
        settings = llama.llama_context_default_params()
        settings.n_ctx = length + args.steps + 1
        settings.n_batch = max(length, args.micro_batch)
        settings.n_ubatch = args.micro_batch
        settings.n_threads = settings.n_threads_batch = args.threads
        if args.gpu:
            settings.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_ENABLED
        self.context = llama.llama_init_from_model(model, settings)
        if not self.context:
            raise SystemExit(f"no context of {settings.n_ctx} tokens")
        self.length, self.steps = length, args.steps
        vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
        self.tokens = [i * 2654435761 % 2**32 % vocabulary for i in range(length + args.steps)]

    def feed(self, tokens):
        """Appends tokens and waits for the logits after the last."""
        array = (llama.llama_token * len(tokens))(*tokens)
        status = llama.llama_decode(self.context, llama.llama_batch_get_one(array, len(tokens)))
        if status != 0:
            raise SystemExit(f"llama_decode: {status}")
        llama.llama_synchronize(self.context)

    def prefill(self, length):
        """Seconds of a prompt from an empty state."""
        llama.llama_memory_clear(llama.llama_get_memory(self.context), True)
        start = time.perf_counter()
        self.feed(self.tokens[:length])
        return time.perf_counter() - start

    def decode(self):
        """Seconds of the steps after a prompt."""
        start = time.perf_counter()
        for token in self.tokens[self.length :]:
            self.feed([token])
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

    def run(self, repeats, prefills):
        """Seconds of the prefills and of the decodes after them."""
        prefill, decode = [], []
        for repeat in range(repeats):
            if repeat < prefills:
                prefill.append(self.prefill(self.length))
                state = self.kept() if prefills < repeats else None
            else:
                self.restore(state)
            decode.append(self.decode())
        return prefill, decode

    def close(self):
        llama.llama_free(self.context)


def main():
    args = arguments()
    quiet = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(quiet, ctypes.c_void_p(0))
    llama.llama_backend_init()
    if args.gpu and not llama.llama_supports_gpu_offload():
        raise SystemExit("this llama-cpp-python computes on the processor only: build it with CMAKE_ARGS=-DGGML_CUDA=ON")
    settings = llama.llama_model_default_params()
    settings.n_gpu_layers = -1 if args.gpu else 0
    model = llama.llama_model_load_from_file(os.fsencode(args.gguf), settings)
    if not model:
        raise SystemExit(f"{args.gguf}: cannot be loaded")
    rows = []
    for length in args.lengths:
        sequence = Sequence(model, length, args)
        sequence.prefill(min(length, args.micro_batch))
        sequence.decode()
        prefill, decode = sequence.run(args.repeats, args.prefills or args.repeats)
        sequence.close()
        rows.append({"length": length, "prefill_seconds": prefill, "decode_seconds": decode})
        print(rows[-1], file=sys.stderr, flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"version": llama.__version__, "lengths": rows, "steps": args.steps, "peak_memory_bytes": peak}))


if __name__ == "__main__":
    main()
