"""Export: export.py WEIGHTS_DIR EXPORT_DIR -> hf/ (bf16, official names and layout) and mlx-4bit/ (mlx_lm convert -q + mtp.safetensors)."""
import json, os, shutil, sys
import numpy as np, torch
from safetensors.torch import save_file
import evals, hfmodel, quant, model
from special import *
src, out = sys.argv[1], sys.argv[2]; hf, mlx_dir = os.path.join(out, "hf"), os.path.join(out, "mlx-4bit")
HERE = os.path.dirname(os.path.abspath(__file__))
shutil.rmtree(hf, ignore_errors=True); shutil.rmtree(mlx_dir, ignore_errors=True); os.makedirs(hf)
P = evals.load(src)
assert set(P) == set(model.shapes())
T = {n: p.to(torch.float32 if n.endswith("A_log") else torch.bfloat16).contiguous() for n, p in P.items()}
save_file(T, os.path.join(hf, "model.safetensors"), metadata={"format": "pt"})
json.dump({"metadata": {"total_size": sum(t.numel() * t.element_size() for t in T.values())}, "weight_map": {n: "model.safetensors" for n in T}}, open(os.path.join(hf, "model.safetensors.index.json"), "w"), indent=1)
cfg = dict(architectures=["Qwen3_5MoeForConditionalGeneration"], model_type="qwen3_5_moe", language_model_only=True, tie_word_embeddings=False, dtype="bfloat16", transformers_version="5.17.0",
  image_token_id=ID["<|image_pad|>"], video_token_id=ID["<|video_pad|>"], vision_start_token_id=ID["<|vision_start|>"], vision_end_token_id=ID["<|vision_end|>"], bos_token_id=EOT, eos_token_id=IM_END, pad_token_id=EOT, text_config=hfmodel.text_config())
json.dump(cfg, open(os.path.join(hf, "config.json"), "w"), indent=2)
json.dump(dict(bos_token_id=EOT, do_sample=True, eos_token_id=[IM_END, EOT], pad_token_id=EOT, temperature=0.6, top_k=20, top_p=0.95, transformers_version="5.17.0"), open(os.path.join(hf, "generation_config.json"), "w"), indent=2)
shutil.copy(TOKFILE, os.path.join(hf, "tokenizer.json")); shutil.copy(os.path.join(HERE, "chat_template.jinja"), hf)
added = {str(i): dict(content=t, lstrip=False, normalized=False, rstrip=False, single_word=False, special=t not in NOT_SPECIAL) for t, i in ID.items()}
json.dump(dict(add_bos_token=False, add_prefix_space=False, added_tokens_decoder=added, additional_special_tokens=[t for t in SPECIAL if t not in NOT_SPECIAL and not t.startswith(("<tts", "<|audio"))][1:], bos_token=None, clean_up_tokenization_spaces=False, eos_token="<|im_end|>", errors="replace", model_max_length=32768, pad_token="<|endoftext|>", split_special_tokens=False, tokenizer_class="Qwen2Tokenizer", unk_token=None, pretokenize_regex=PATTERN), open(os.path.join(hf, "tokenizer_config.json"), "w"), ensure_ascii=False, indent=2)
# ---- MLX
from mlx_lm import convert
convert(hf, mlx_dir, quantize=True, q_bits=4, q_group_size=64)
import mlx.core as mx
W = {}
for n, p in P.items():           # mtp.* with the same scheme and mlx-lm's naming (experts split into switch_mlp gate/up/down)
    if not n.startswith("mtp."): continue
    items = [(n, p)]
    if n.endswith("experts.gate_up_proj"): b = n[:-len("experts.gate_up_proj")] + "switch_mlp."; items = [(b + "gate_proj.weight", p[:, :C_INTER]) , (b + "up_proj.weight", p[:, C_INTER:])] if (C_INTER := model.C.inter) else None
    elif n.endswith("experts.down_proj"): items = [(n[:-len("experts.down_proj")] + "switch_mlp.down_proj.weight", p)]
    for name, t in items:
        bits = quant.bits_of(n); a = mx.array(t.contiguous().numpy()).astype(mx.bfloat16)
        if bits is None:          # norms: mlx-lm stores 1 + w for the zero-centred norms
            W[name] = (mx.array(t.numpy()).astype(mx.bfloat16) + 1.0).astype(mx.bfloat16)
        else:
            q, s, z = mx.quantize(a, 64, bits); k = name[:-len(".weight")]; W[name], W[k + ".scales"], W[k + ".biases"] = q, s, z
mx.save_safetensors(os.path.join(mlx_dir, "mtp.safetensors"), W, metadata={"format": "mlx"})
c = json.load(open(os.path.join(mlx_dir, "config.json"))); q = c["quantization"]
for k in ("mlp.gate", "mlp.shared_expert_gate"): q["mtp.layers.0." + k] = {"group_size": 64, "bits": 8}
c["quantization"] = q; c["quantization_config"] = q; json.dump(c, open(os.path.join(mlx_dir, "config.json"), "w"), indent=2)
for f in ("generation_config.json", "tokenizer_config.json", "tokenizer.json", "chat_template.jinja"): shutil.copy(os.path.join(hf, f), mlx_dir)
for f in ("README.md",):
    if os.path.exists(os.path.join(mlx_dir, f)): os.remove(os.path.join(mlx_dir, f))
for d in (hf, mlx_dir): print(d, {f: os.path.getsize(os.path.join(d, f)) for f in sorted(os.listdir(d))})
