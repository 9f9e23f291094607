"""Train small drafters that differ in one setting each, and walk them over held-out features.

    python recipes/sweep.py --features runs/f/sampled --heldout sharegpt=runs/f/sg humaneval=runs/f/he --out runs/sweep

Every arm sees the same tokens once, in the same order. An arm that is finished stays; the table is in sweep.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch

from draftwing.core.provenance import here
from draftwing.drafter.checkpoint import load_drafter
from draftwing.formats.features import FeatureStore
from draftwing.formats.records import Record, write_record
from draftwing.target.load import load_target
from draftwing.train.evaluate import evaluate
from draftwing.train.unroll import Teacher

BASE = {"epochs": "1", "batch-tokens": "1024", "intermediate-size": "2048", "later-rows": "accepted"}
ARMS: dict[str, dict[str, str]] = {
    "base": {},
    "later rows all": {"later-rows": "all"},
    "updates of 2,048": {"batch-tokens": "2048"},
    "updates of 512": {"batch-tokens": "512"},
    "depth 3": {"depth": "3"},
    "vocabulary 4,096": {"draft-vocab-size": "4096"},
    "rates x 2": {"muon-lr": "0.04", "adam-lr": "0.002"},
    "rates / 2": {"muon-lr": "0.01", "adam-lr": "0.0005"},
    "loops twice": {"loops": "twice"},
}
STEPS = 5


def main() -> None:
    """Run the arms that are not finished, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=Path, required=True)
    parser.add_argument("--heldout", nargs="+", required=True, metavar="NAME=FOLDER")
    parser.add_argument("--arms", nargs="*", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    folders = dict(pair.split("=", 1) for pair in options.heldout)
    table = {}
    for name in options.arms:
        out = options.out / name.replace(" ", "-").replace("/", "by").replace(",", "")
        if not (out / "record.json").exists():
            settings = [word for key, value in (BASE | ARMS[name]).items() for word in (f"--{key}", value)]
            command = [sys.executable, "-m", "draftwing", "train", "--features", str(options.features), *settings]
            subprocess.run([*command, "--out", str(out)], check=True)
        table[name] = _figures(out, {which: FeatureStore(Path(folder)) for which, folder in folders.items()})
        print(name, json.dumps(table[name]), flush=True)
    record = Record(
        kind="sweep",
        provenance=here(torch.get_num_threads()),
        settings={"base": BASE, "arms": {name: ARMS[name] for name in options.arms}, "steps": STEPS},
        digests={},
        figures=table,
        samples=[],
    )
    write_record(options.out / "sweep.json", record)


def _figures(folder: Path, heldout: dict[str, FeatureStore]) -> dict[str, object]:
    """Accept length of walked cycles on each held-out set, at 2 drafts a cycle and at STEPS."""
    target = load_target("default")
    dtype = target.weights.head.dtype
    loaded = load_drafter(folder, dtype, torch.device("cpu"), None)
    teacher = Teacher(target, loaded.vocabulary, dtype)
    trained = json.loads((folder / "contract.json").read_text())["trained_tokens"]
    figures: dict[str, object] = {"trained_tokens": trained}
    for which, store in heldout.items():
        for steps in (2, STEPS):
            walked = evaluate(loaded.model, teacher, loaded.vocabulary, store, steps, dtype).cycles
            figures[f"{which}, {steps} drafts"] = walked.accept_length
    return figures


if __name__ == "__main__":
    main()
