"""Reference logits at every position: `python tools/reference_positions.py models/tiny`.

Runs transformers' Qwen3_5MoeForCausalLM in float32 over the dequantised 4-bit weights of a tiny checkpoint directory
(layout of models/tiny) and writes DIR/reference/positions.safetensors: for each position of the eight prompts of
reference.safetensors, and of the evaluation text in windows from an empty state, the top two ids and logits and the
logsumexp; for the text also the logit of the true next token. The format is described in
models/tiny/reference/README.md.

Before it writes, it checks itself against the older files: the last positions of each prompt against
reference.safetensors, the perplexity against reference.json. One thread and about 1 GiB of memory suffice; the run
takes a minute or two.
"""

import argparse
import json
import math
import os
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).resolve().parent / "tiny"))
import hfmodel  # noqa: E402  (tools/tiny: the checkpoint's configuration for transformers)
import reference  # noqa: E402  (tools/tiny: reads the MLX layout back to float32)

# Largest difference to the older reference that float32 sums in another order may make (logits are of the size of 10).
TOLERANCE = 1e-4


@torch.no_grad()
def logits_of(model, ids: torch.Tensor) -> torch.Tensor:
    """Float32 logits [tokens, vocabulary] of one sequence from an empty state."""
    return model(input_ids=ids.long()[None], use_cache=False).logits[0].float()


def summary(logits: torch.Tensor) -> dict[str, torch.Tensor]:
    """What is kept of each position's logits."""
    top = logits.topk(2, -1)
    return {
        "top_ids": top.indices.to(torch.int32),
        "top_logits": top.values.contiguous(),
        "logsumexp": logits.logsumexp(-1),
    }


def of_prompt(model, name: str, older: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of one prompt, checked against the last positions in reference.safetensors."""
    kept = summary(logits_of(model, older[f"{name}.ids"]))
    last = len(older[f"{name}.logsumexp"])
    logit_gap = (kept["top_logits"][-last:] - older[f"{name}.top_logits"][:, :2]).abs().max().item()
    sum_gap = (kept["logsumexp"][-last:] - older[f"{name}.logsumexp"]).abs().max().item()
    if max(logit_gap, sum_gap) > TOLERANCE:
        raise SystemExit(f"{name}: logits differ from reference.safetensors by {logit_gap}, logsumexp by {sum_gap}")
    same = kept["top_ids"][-last:] == older[f"{name}.top_ids"][:, :2]
    print(
        f"{name}: {len(kept['logsumexp'])} positions; last {last}: max difference {max(logit_gap, sum_gap):.1e}, "
        f"top-1 equal {int(same[:, 0].sum())}, top-2 equal {int(same[:, 1].sum())}",
        flush=True,
    )
    return kept


def of_text(model, ids: torch.Tensor, window: int) -> dict[str, torch.Tensor]:
    """The tensors of the evaluation text, its windows one after another."""
    parts = []
    for start in range(0, len(ids), window):
        piece = ids[start : start + window]
        logits = logits_of(model, piece)
        part = summary(logits)
        # The last position of a window predicts a token of the next window, which is never scored.
        following = torch.full((len(piece),), float("nan"))
        following[:-1] = logits[:-1].gather(1, piece[1:].long()[:, None])[:, 0]
        part["next_logit"] = following
        parts.append(part)
        print(f"eval: {start + len(piece)} of {len(ids)} tokens", flush=True)
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}


def perplexity(text: dict[str, torch.Tensor]) -> float:
    """exp of the mean of logsumexp - next_logit over the scored positions."""
    loss = (text["logsumexp"] - text["next_logit"]).double()
    return math.exp(loss[~loss.isnan()].mean().item())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("checkpoint", type=Path, help="checkpoint directory, such as models/tiny")
    folder = parser.parse_args().checkpoint
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

    older = load_file(folder / "reference/reference.safetensors")
    described = json.loads((folder / "reference/reference.json").read_text())
    model = hfmodel.build(reference.read_mlx(str(folder)))

    kept = {}
    for prompt in described["prompts"]:
        name = prompt["name"]
        kept |= {f"{name}.{key}": value for key, value in of_prompt(model, name, older).items()}
    window = described["perplexity"]["window"]
    text = of_text(model, older["eval.ids"], window)
    found, expected = perplexity(text), described["perplexity"]["dequantised_4bit"]
    print(f"perplexity {found:.7f}, in reference.json {expected:.7f}")
    if abs(found / expected - 1) > 1e-5:  # the older figure was summed in float32, which made it 2e-6 smaller
        raise SystemExit("perplexity differs from reference.json")
    kept |= {f"eval.{key}": value for key, value in text.items()}

    out = folder / "reference/positions.safetensors"
    save_file(kept, out, metadata={"window": str(window), "made_by": "tools/reference_positions.py"})
    print(f"{out}: {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
