#!/usr/bin/env python3
"""Compiles the CUDA source of all kernels to machine code for one GPU architecture; needs no GPU.

    pip install nvidia-cuda-nvrtc
    cargo run -p lily-msl --example emit -- kernels OUTPUT cuda
    tools/kernels/nvrtc.py OUTPUT/kernels.cu [--arch sm_90] [--tiny] [--shape NAME=VALUE] [--define NAME] [--output kernels.cubin]

Prints the compiler's messages, and exits with 1 if it refused the source.
"""

import argparse
import ctypes
import pathlib
import sys
import time

import nvidia

# The values of the function constants of kernels/model.h: of Qwen3.6-35B-A3B, and of models/tiny.
FULL = {"HIDDEN": 2048, "VOCABULARY": 248320, "QUERY_HEADS": 16, "KV_HEADS": 2, "KEY_HEADS": 16, "VALUE_HEADS": 32,
        "EXPERTS": 256, "EXPERT_WIDTH": 512, "EPSILON": "1e-6f", "ROPE_THETA": "1e7f"}
TINY = FULL | {"HIDDEN": 256, "VOCABULARY": 6144, "QUERY_HEADS": 8, "KEY_HEADS": 4, "VALUE_HEADS": 8, "EXPERTS": 32,
               "EXPERT_WIDTH": 64}


def load():
    """The newest libnvrtc of the PyPI packages that are installed."""
    found = sorted(path for folder in nvidia.__path__ for path in pathlib.Path(folder).rglob("libnvrtc.so.*"))
    if not found:
        sys.exit("libnvrtc is not installed: pip install nvidia-cuda-nvrtc")
    return ctypes.CDLL(str(found[-1]))


def text(nvrtc, program, what):
    """What nvrtcGet<what> gives: the log or the machine code."""
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer.raw


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--tiny", action="store_true", help="the shapes of models/tiny")
    parser.add_argument("--shape", action="append", default=[], metavar="NAME=VALUE", help="in the place of one of these")
    parser.add_argument("--define", action="append", default=[], metavar="NAME", help="a macro")
    parser.add_argument("--output", type=pathlib.Path)
    options = parser.parse_args()
    nvrtc = load()
    program = ctypes.c_void_p()
    source = options.source.read_bytes()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, options.source.name.encode(), 0, None, None)
    flags = [f"--gpu-architecture={options.arch}", "--std=c++20", "--device-as-default-execution-space",
             "-D__METAL_VERSION__=310"]
    others = dict(shape.split("=") for shape in options.shape)
    if unknown := others.keys() - FULL.keys():
        parser.error(f"no such shapes: {unknown}")
    values = (TINY if options.tiny else FULL) | others
    flags += [f"-DLILY_{name}={value}" for name, value in values.items()]
    flags += [f"-D{name}" for name in options.define]
    start = time.monotonic()
    status = nvrtc.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*map(str.encode, flags)))
    print(text(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(), end="")
    if status:
        print(f"{options.source}: refused")
        return 1
    code = text(nvrtc, program, "CUBIN")
    print(f"{options.source}: {len(code)} bytes for {options.arch} in {time.monotonic() - start:.1f} s")
    if options.output:
        options.output.write_bytes(code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
