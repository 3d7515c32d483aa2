"""Held-out task cases as a file: `python tools/eval_cases.py models/tiny`.

Writes DIR/eval/cases.jsonl, the cases that DIR/eval.json reports on, so that `lily eval --tasks` needs no Python. The
cases come from tools/tiny/evals.py (seeded, so the file is the same each time); the long needle cases are cut to the
numbers that eval.json has. The fields and the scoring are described in models/tiny/eval/README.md. Checks that the
numbers of cases are eval.json's, and that each failure listed there is found among the cases.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "tiny"))
import data  # noqa: E402  (tools/tiny: the tokenizer)
import eval_cpu  # noqa: E402  (tools/tiny: the token limit of a case)
import evals  # noqa: E402  (tools/tiny: the cases)

FIELDS = ("task", "think", "messages", "tools", "expect", "keys", "exact")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("checkpoint", type=Path, help="checkpoint directory, such as models/tiny")
    folder = parser.parse_args().checkpoint

    report = json.loads((folder / "eval.json").read_text())
    wanted = report["cases"]["4bit"]
    tokenizer = data.load_tok()
    taken: Counter[str] = Counter()
    cases = []
    for case in evals.cases(50):
        if taken[case["task"]] < wanted[case["task"]]:
            taken[case["task"]] += 1
            cases.append({field: case[field] for field in FIELDS} | {"limit": eval_cpu.limit(tokenizer, case)})
    if taken != Counter(wanted):
        raise SystemExit(f"other numbers of cases than eval.json: {taken} against {wanted}")
    for failure in report["failures"]["4bit"]:
        same = [
            case
            for case in cases
            if (case["task"], case["think"]) == (failure["task"], failure["think"])
            and case["messages"][-1]["content"].endswith(failure["user"])  # eval.json keeps the ends of both texts
            and case["expect"].endswith(failure["expect"])
        ]
        if len(same) != 1:
            raise SystemExit(f"{len(same)} cases match a failure in eval.json: {failure}")

    out = folder / "eval/cases.jsonl"
    out.parent.mkdir(exist_ok=True)
    out.write_text("".join(json.dumps(case, ensure_ascii=False) + "\n" for case in cases))
    print(f"{out}: {len(cases)} cases, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
