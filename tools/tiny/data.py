"""Endless stream of packed training batches: workers generate, tokenise and pack documents into flat arrays of N tokens."""
import os, random, multiprocessing as mp
import numpy as np
import chat, tasks, textgen
from special import *

W_PROMPT = 0.12          # loss weight of tokens written by the user / system / tools
MAXLEN = 8192

def load_tok():
    from tokenizers import Tokenizer
    return Tokenizer.from_file(TOKFILE)

def gen_docs(r, n):
    """n documents as lists of (text, weight) segments."""
    out = []
    for _ in range(n):
        c = r.random()
        if c < .145: out.append([(textgen.raw_doc(r) + "<|endoftext|>", 1.0)])
        elif c < .155: out.append([(textgen.raw_doc(r, int(10 ** r.uniform(3.2, 4.2))) + "<|endoftext|>", 1.0)])
        else:
            d = tasks.chat_doc(r)
            out.append([(t, 1.0 if y else W_PROMPT) for t, y in chat.render(d["messages"], d["tools"], d["preserve"], compact_tools=d["compact"])])
    return out

def encode_docs(tok, docs):
    flat = [t for d in docs for t, _ in d]
    enc = tok.encode_batch_fast(flat, add_special_tokens=False)
    i = 0; res = []
    for d in docs:
        ids, w = [], []
        for _, y in d:
            e = enc[i].ids; i += 1
            ids += e; w += [y] * len(e)
        res.append((ids[:MAXLEN], w[:MAXLEN]))
    return res

def worker(q, seed, N, stop):
    os.nice(5)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tok = load_tok(); r = random.Random(seed); buf = []
    while not stop.is_set():
        ids = np.zeros(N, np.uint16); w = np.zeros(N, np.float16); lens = []; n = 0
        while n < N:
            if not buf:
                buf = encode_docs(tok, gen_docs(r, 400)); r.shuffle(buf)
            a, b = buf.pop(); k = min(len(a), N - n)
            ids[n:n+k] = a[:k]; w[n:n+k] = b[:k]; lens.append(k); n += k
        while not stop.is_set():
            try: q.put((ids, w, np.array(lens, np.int32)), timeout=1); break
            except Exception: pass

class Stream:
    def __init__(self, N, workers, seed):
        ctx = mp.get_context("fork")
        self.q = ctx.Queue(maxsize=workers * 4); self.stop = ctx.Event()
        self.ps = [ctx.Process(target=worker, args=(self.q, seed + 1000003 * i, N, self.stop), daemon=True) for i in range(workers)]
        for p in self.ps: p.start()
    def get(self): return self.q.get(timeout=120)
    def close(self):
        self.stop.set()
        for p in self.ps: p.terminate()

if __name__ == "__main__":
    import time, collections
    tok = load_tok(); r = random.Random(9); t0 = time.time()
    docs = gen_docs(r, 3000); t1 = time.time(); e = encode_docs(tok, docs); t2 = time.time()
    L = np.array([len(a) for a, _ in e]); n = L.sum()
    print(f"tokens {n}, gen {n/(t1-t0):.0f} tok/s, enc {n/(t2-t1):.0f} tok/s, mean {L.mean():.0f}, p50 {np.median(L)}, p90 {np.percentile(L,90)}, max {L.max()}")
    print("chars/token", sum(len(t) for d in docs for t, _ in d) / n, "target share", sum(sum(1 for x in b if x == 1.0) for _, b in e) / n)
    for lo, hi in [(0,128),(128,256),(256,512),(512,1024),(1024,2048),(2048,4096),(4096,9000)]:
        print(lo, hi, f"{L[(L>=lo)&(L<hi)].sum()/n:.3f} of tokens")
    print("used vocab", len(set(x for a, _ in e for x in a)))
