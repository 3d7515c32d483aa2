#!/usr/bin/env python3
"""Writes a GGUF file with the shapes of Qwen3.6-35B-A3B and random Q4_0 weights, for timing llama.cpp: synthetic_gguf.py OUT.gguf

The twin of `lily synth`: the same tensors at about the same bits (4.5 a weight), of sane magnitude, nothing bigger than a
pool of random blocks ever in memory. Layout facts: Q4_0 blocks of 32 weights are an fp16 step and 16 bytes; `ssm_a`
holds -exp(A_log); norms hold 1 + w; the router is F32, as llama.cpp's own converter leaves it. Needs numpy and gguf from PyPI.
"""
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

LAYERS, HIDDEN, VOCABULARY = 40, 2048, 248320
HEADS, KV_HEADS, HEAD_DIM, ROTARY = 16, 2, 256, 64
KEY_HEADS, VALUE_HEADS, DELTA_DIM, CONV_WIDTH = 16, 32, 128, 4
EXPERTS, TOP_K, WIDTH = 256, 8, 512
VALUES = VALUE_HEADS * DELTA_DIM
CHANNELS = 2 * KEY_HEADS * DELTA_DIM + VALUES

BLOCK, BLOCK_BYTES = 32, 18
POOL = 1 << 22
ROUTING = 0.03


def block_pool(random, deviation):
    """Random Q4_0 blocks whose weights have about this standard deviation: step times (0..15) - 8."""
    pool = np.empty(POOL, dtype=[("step", "<f2"), ("weights", "u1", BLOCK // 2)])
    steps = deviation / 4.64 * random.uniform(0.5, 1.5, POOL)
    pool["step"] = steps * random.choice([-1.0, 1.0], POOL)
    pool["weights"] = random.integers(0, 256, (POOL, BLOCK // 2), dtype=np.uint8)
    return pool.view(np.uint8).reshape(POOL, BLOCK_BYTES)


def tensors(random):
    """Name, shape with the outer dimension first, and for F32 tensors a function of the shape; None means Q4_0."""

    def normal(deviation, centre=0.0):
        return lambda shape: centre + deviation * random.standard_normal(shape)

    norm = normal(0.05, 1.0)
    yield "token_embd.weight", (VOCABULARY, HIDDEN), None
    yield "output.weight", (VOCABULARY, HIDDEN), None
    yield "output_norm.weight", (HIDDEN,), norm
    for layer in range(LAYERS):
        mixer = attention(norm) if layer % 4 == 3 else delta_net(random, normal, norm)
        for name, shape, values in (*mixer, *experts(normal, norm)):
            yield f"blk.{layer}.{name}", shape, values


def attention(norm):
    return (
        ("attn_q.weight", (HEADS * HEAD_DIM * 2, HIDDEN), None),
        ("attn_k.weight", (KV_HEADS * HEAD_DIM, HIDDEN), None),
        ("attn_v.weight", (KV_HEADS * HEAD_DIM, HIDDEN), None),
        ("attn_q_norm.weight", (HEAD_DIM,), norm),
        ("attn_k_norm.weight", (HEAD_DIM,), norm),
        ("attn_output.weight", (HIDDEN, HEADS * HEAD_DIM), None),
    )


def delta_net(random, normal, norm):
    return (
        ("attn_qkv.weight", (CHANNELS, HIDDEN), None),
        ("attn_gate.weight", (VALUES, HIDDEN), None),
        ("ssm_conv1d.weight", (CHANNELS, CONV_WIDTH), normal(0.3)),
        ("ssm_dt.bias", (VALUE_HEADS,), lambda shape: random.uniform(-4, 1, shape)),
        ("ssm_a", (VALUE_HEADS,), lambda shape: -np.exp(random.uniform(-3, 2, shape))),
        ("ssm_alpha.weight", (VALUE_HEADS, HIDDEN), None),
        ("ssm_beta.weight", (VALUE_HEADS, HIDDEN), None),
        ("ssm_norm.weight", (DELTA_DIM,), norm),
        ("ssm_out.weight", (HIDDEN, VALUES), None),
    )


def experts(normal, norm):
    return (
        ("attn_norm.weight", (HIDDEN,), norm),
        ("post_attention_norm.weight", (HIDDEN,), norm),
        ("ffn_gate_inp.weight", (EXPERTS, HIDDEN), normal(ROUTING)),
        ("ffn_gate_exps.weight", (EXPERTS, WIDTH, HIDDEN), None),
        ("ffn_up_exps.weight", (EXPERTS, WIDTH, HIDDEN), None),
        ("ffn_down_exps.weight", (EXPERTS, HIDDEN, WIDTH), None),
        ("ffn_gate_inp_shexp.weight", (HIDDEN,), normal(ROUTING)),
        ("ffn_gate_shexp.weight", (WIDTH, HIDDEN), None),
        ("ffn_up_shexp.weight", (WIDTH, HIDDEN), None),
        ("ffn_down_shexp.weight", (HIDDEN, WIDTH), None),
    )


def describe(writer):
    """The model's sizes and a vocabulary of placeholders: the harness feeds token ids."""
    writer.add_name("synthetic-qwen3.6-35b-a3b")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(LAYERS)
    writer.add_context_length(262144)
    writer.add_embedding_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_freq_base(1e7)
    writer.add_rope_dimension_count(ROTARY)
    writer.add_rope_dimension_sections([11, 11, 10, 0])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(TOP_K)
    writer.add_expert_feed_forward_length(WIDTH)
    writer.add_expert_shared_feed_forward_length(WIDTH)
    writer.add_ssm_conv_kernel(CONV_WIDTH)
    writer.add_ssm_state_size(DELTA_DIM)
    writer.add_ssm_group_count(KEY_HEADS)
    writer.add_ssm_time_step_rank(VALUE_HEADS)
    writer.add_ssm_inner_size(VALUES)
    writer.add_full_attention_interval(4)
    letters = [chr(c) for c in (*range(33, 127), *range(161, 173), *range(174, 324))][:256]
    words = letters + ["!!"] + [f"w{index}" for index in range(len(letters) + 1, VOCABULARY - 1)] + ["<|im_end|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    writer.add_token_list(words)
    writer.add_token_types([gguf.TokenType.NORMAL] * (VOCABULARY - 1) + [gguf.TokenType.CONTROL])
    writer.add_token_merges(["! !"])
    writer.add_eos_token_id(VOCABULARY - 1)
    writer.add_add_bos_token(False)


def main(path):
    random = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "qwen35moe")
    describe(writer)
    plan = list(tensors(random))
    for name, shape, values in plan:
        if values is None:
            stored = (*shape[:-1], shape[-1] // BLOCK * BLOCK_BYTES)
            writer.add_tensor_info(name, stored, np.dtype(np.uint8), int(np.prod(stored)), raw_dtype=Type.Q4_0)
        else:
            writer.add_tensor_info(name, shape, np.dtype(np.float32), int(np.prod(shape)) * 4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    file, alignment = writer.fout[0], writer.data_alignment
    pad = lambda: file.write(bytes(-file.tell() % alignment))
    pool = block_pool(random, 0.02)
    pad()
    for name, shape, values in plan:
        if values is None:
            left = int(np.prod(shape)) // BLOCK
            while left:
                start = int(random.integers(0, POOL - 1))
                part = pool[start : start + min(left, POOL - start)]
                file.write(part.data)
                left -= len(part)
        else:
            file.write(values(shape).astype("<f4").tobytes())
        pad()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
