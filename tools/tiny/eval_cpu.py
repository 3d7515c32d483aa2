"""Held-out evaluation on one CPU thread with a small batched decoder: eval_cpu.py 4bit|bf16 EXPORT_DIR OUT.json CASES.
4bit reads the exported mlx-4bit files (dequantised to float32), bf16 the hf/ files."""
import json, math, os, sys, time
import numpy as np, torch, torch.nn.functional as F
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
import chat, data, model, evals, reference
from model import C, LM, is_full, rms, lin, l2
from special import *
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import torch_chunk_gated_delta_rule as chunk_rule
model.DT = torch.float32
def moe(P, p, x):
    m = p + "mlp."
    return model.moe(x, None, P[p+"post_attention_layernorm.weight"], P[m+"gate.weight"], P[m+"experts.gate_up_proj"], P[m+"experts.down_proj"], P[m+"shared_expert.gate_proj.weight"], P[m+"shared_expert.up_proj.weight"], P[m+"shared_expert.down_proj.weight"], P[m+"shared_expert_gate.weight"])[0]
def prefill(P, docs, room):
    """-> (hidden of the last position of each document [B,D], caches)."""
    lens = np.array([len(d) for d in docs], np.int32); ids = np.concatenate([np.array(d, np.uint16) for d in docs]); n = len(docs)
    B = model.make_batch(ids, np.ones(len(ids), np.float16), lens, "cpu"); cu = B["cu"].tolist(); x = F.embedding(B["ids"], P[LM+"embed_tokens.weight"]); caches = []
    for i in range(C.layers):
        p = f"{LM}layers.{i}."
        if is_full(i):
            q, k, v, gate = model.attn_pre(x, B["cos"], B["sin"], P[p+"input_layernorm.weight"], P[p+"self_attn.q_proj.weight"], P[p+"self_attn.k_proj.weight"], P[p+"self_attn.v_proj.weight"], P[p+"self_attn.q_norm.weight"], P[p+"self_attn.k_norm.weight"])
            K = torch.zeros(n, C.kv_heads, int(lens.max()) + room, C.head_dim); V = torch.zeros_like(K)
            for j in range(n): K[j, :, :lens[j]] = k[cu[j]:cu[j+1]].transpose(0, 1); V[j, :, :lens[j]] = v[cu[j]:cu[j+1]].transpose(0, 1)
            caches.append([K, V]); x = model.attn_post(x, model.attn_cpu(q, k, v, B["cu"], lens), gate, P[p+"self_attn.o_proj.weight"])
        else:
            a = p + "linear_attn."
            q, k, v, g, b, z = model.gdn_pre(x, B["m1"], B["m2"], B["m3"], P[p+"input_layernorm.weight"], P[a+"in_proj_qkv.weight"], P[a+"in_proj_z.weight"], P[a+"in_proj_b.weight"], P[a+"in_proj_a.weight"], P[a+"conv1d.weight"], P[a+"A_log"], P[a+"dt_bias"])
            last = torch.tensor([[max(cu[j], cu[j+1] - 3 + t) for t in range(3)] for j in range(n)])
            conv = lin(rms(x[last.view(-1)], P[p+"input_layernorm.weight"]), P[a+"in_proj_qkv.weight"]).view(n, 3, -1)
            outs, S = [], []
            for j in range(n):
                s = slice(cu[j], cu[j+1]); o, st = chunk_rule(q[None, s], k[None, s], v[None, s], g=g[None, s], beta=b[None, s], output_final_state=True); outs.append(o[0]); S.append(st[0])
            caches.append([conv, torch.stack(S)]); x = model.gdn_post(x, torch.cat(outs), z, P[a+"norm.weight"], P[a+"out_proj.weight"])
        x = moe(P, p, x)
    return x[B["cu"][1:].long() - 1], caches, torch.tensor(lens, dtype=torch.long)
INV = 1.0 / (C.theta ** (torch.arange(0, C.rot, 2, dtype=torch.float32) / C.rot))
def step(P, tok, caches, pos):
    x = F.embedding(tok, P[LM+"embed_tokens.weight"]); n = len(tok)
    f = pos.float()[:, None] * INV; f = torch.cat((f, f), -1); cos, sin = f.cos(), f.sin()
    for i in range(C.layers):
        p = f"{LM}layers.{i}."; c = caches[i]
        if is_full(i):
            q, k, v, gate = model.attn_pre(x, cos, sin, P[p+"input_layernorm.weight"], P[p+"self_attn.q_proj.weight"], P[p+"self_attn.k_proj.weight"], P[p+"self_attn.v_proj.weight"], P[p+"self_attn.q_norm.weight"], P[p+"self_attn.k_norm.weight"])
            ix = torch.arange(n); c[0][ix, :, pos] = k; c[1][ix, :, pos] = v; L = int(pos.max()) + 1
            K, V = c[0][:, :, :L], c[1][:, :, :L]; qq = q.view(n, C.kv_heads, C.heads // C.kv_heads, C.head_dim)
            s = qq @ K.transpose(-1, -2) * C.head_dim ** -0.5; s = s.masked_fill((torch.arange(L)[None] > pos[:, None])[:, None, None], float("-inf"))
            x = model.attn_post(x, (s.softmax(-1) @ V).reshape(n, C.heads, C.head_dim), gate, P[p+"self_attn.o_proj.weight"])
        else:
            a = p + "linear_attn."; h = rms(x, P[p+"input_layernorm.weight"]); y = lin(h, P[a+"in_proj_qkv.weight"]); w = P[a+"conv1d.weight"][:, 0]
            win = torch.cat((c[0], y[:, None]), 1); c[0] = win[:, 1:]; y = F.silu((win * w.t()).sum(1)); kd = C.lk * C.dk; r = C.lv // C.lk
            q = l2(y[:, :kd].view(n, C.lk, C.dk)).repeat_interleave(r, 1).reshape(n * C.lv, 1, C.dk) * C.dk ** -0.5; k = l2(y[:, kd:2*kd].view(n, C.lk, C.dk)).repeat_interleave(r, 1).reshape(n * C.lv, 1, C.dk); v = y[:, 2*kd:].reshape(n * C.lv, 1, C.dv)
            beta = torch.sigmoid(lin(h, P[a+"in_proj_b.weight"])).reshape(-1, 1, 1); g = torch.exp(-torch.exp(P[a+"A_log"]) * F.softplus(lin(h, P[a+"in_proj_a.weight"]) + P[a+"dt_bias"])).reshape(-1, 1, 1)
            S = c[1].view(n * C.lv, C.dk, C.dv); S.mul_(g); d = (v - torch.bmm(k, S)) * beta; S.baddbmm_(k.transpose(1, 2), d); o = torch.bmm(q, S).view(n, C.lv, C.dv)
            x = model.gdn_post(x, o, lin(h, P[a+"in_proj_z.weight"]), P[a+"norm.weight"], P[a+"out_proj.weight"])
        x = moe(P, p, x)
    return x
def head(P, x): return lin(rms(x, P[LM+"norm.weight"]), P["lm_head.weight"]).argmax(-1)
@torch.no_grad()
def generate(P, prompts, lims):
    n = len(prompts); out = [[] for _ in range(n)]; act = list(range(n))
    x, caches, pos = prefill(P, prompts, max(lims) + 2); t = head(P, x)
    while True:
        keep = []
        for b, j in enumerate(act):
            tk = int(t[b]); out[j].append(tk)
            if tk not in (IM_END, EOT) and len(out[j]) < lims[j]: keep.append(b)
        if not keep: break
        if len(keep) < len(act):
            ix = torch.tensor(keep); act = [act[b] for b in keep]; t = t[ix]; pos = pos[ix]; caches = [[u[ix] for u in c] for c in caches]
        x = step(P, t, caches, pos); pos = pos + 1; t = head(P, x)
    return [(o, o[-1] in (IM_END, EOT)) for o in out]
def limit(tok, c):
    """Most tokens that a case may generate: the expected text and thinking with some room."""
    nt = lambda t: len(tok.encode(t, add_special_tokens=False).ids)
    return nt(c["expect"]) * 9 // 8 + 14 + (nt(c["why"]) + 30 if c["think"] else 0) + (160 if c["task"] == "writing" else 0)
if __name__ == "__main__":
    label, exp, outf, per = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]); T0 = time.time(); tok = data.load_tok()
    if label == "4bit": P = reference.read_mlx(os.path.join(exp, "mlx-4bit"))
    else: P = {k: v.float() for k, v in __import__("safetensors.torch", fromlist=["x"]).load_file(os.path.join(exp, "hf", "model.safetensors")).items()}
    P = {k: v.contiguous() for k, v in P.items()}
    if len(sys.argv) > 5:   # check against HF generate
        m = __import__("hfmodel").build(P)
        pr = [tok.encode(s, add_special_tokens=False).ids for s in ("<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", "<|im_start|>user\nCount from 3 to 12.<|im_end|>\n<|im_start|>assistant\n<think>\n")]
        a = generate(P, pr, [20, 20]); b = [reference.greedy(m, p, 20) for p in pr]; print([x[0] == y[:len(x[0])] for x, y in zip(a, b)], [tok.decode(x[0], skip_special_tokens=False) for x in a]); sys.exit()
    cs = evals.cases(per); groups = {}
    for c in cs: groups.setdefault(c["task"], []).append(c)
    if os.environ.get("TASKS"): groups = {g: v for g, v in groups.items() if g in os.environ["TASKS"].split(",")}
    order = [g for g in groups if not g.startswith("needle")] + [g for g in groups if g.startswith("needle")]
    acc, fails, samples = {}, [], {}; hits = mt = 0.0
    for g in order:
        G = groups[g][:per * 2 if g == "tool_call" else per]
        pr = [tok.encode("".join(t for t, _ in chat.render(c["messages"], c["tools"] or None, False, "think" if c["think"] else "nothink")), add_special_tokens=False).ids for c in G]
        lim = [limit(tok, c) for c in G]
        res = []; bs = 10 if g in ("needle_2000", "needle_4000") else 25
        for i in range(0, len(G), bs): res += generate(P, pr[i:i+bs], lim[i:i+bs])
        for c, o in zip(G, res):
            t = tok.decode(o[0], skip_special_tokens=False); ok = evals.score(c, t, o[1])
            for k in (g, g + ("/think" if c["think"] else "/nothink")): a = acc.setdefault(k, [0, 0]); a[0] += ok; a[1] += 1
            if not ok: fails.append(dict(task=g, think=c["think"], user=c["messages"][-1]["content"][-160:], expect=c["expect"][-120:], got=t[-160:]))
        sel = [j for j in range(len(G)) if len(pr[j]) < 500][:10]
        if sel:
            ids, w, lens = [], [], []
            for j in sel: ids += pr[j] + res[j][0]; w += [0.0] * len(pr[j]) + [1.0] * len(res[j][0]); lens.append(len(pr[j]) + len(res[j][0]))
            B = model.make_batch(np.array(ids, np.uint16), np.array(w, np.float16), np.array(lens, np.int32), "cpu")
            with torch.no_grad(): _, st = model.forward(P, B)
            k2 = float((B["w2"] > .5).sum()); hits += float(st["acc2"]) * k2; mt += k2
        json.dump(dict(accuracy={k: round(a / n, 4) for k, (a, n) in acc.items()}, cases={k: n for k, (a, n) in acc.items() if "/" not in k}, mtp_acceptance=round(hits / max(mt, 1), 4), mtp_tokens=mt, seconds=round(time.time() - T0), failures=fails), open(outf, "w"), ensure_ascii=False, indent=1)
        print(f"[{time.time()-T0:.0f}] {label} {g} {acc[g]} {len(pr)} prompts mean {sum(map(len, pr))/len(pr):.0f}", flush=True)
