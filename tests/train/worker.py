"""One process of a two-process run: trains on the features folder argv[1] and leaves what came of it in argv[2]."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftwing.formats.features import FeatureStore
from draftwing.parallel.group import Group, join
from tests.train.scenes import quiet, trainer

# Muon turns gradients in bfloat16, where another order of summation can show in the last place: its rate keeps that
# out of the losses.
CHANGES = {"batch_tokens": 60, "muon_lr": 1e-4}


def gradients(source: FeatureStore, numbers: list[int], group: Group | None = None) -> dict[str, Tensor]:
    """What a fresh drafter learns from the samples `numbers` of all processes."""
    run = trainer(group, clip=1e9)
    run._optimizer.step = lambda share: None  # type: ignore[method-assign]
    run.train_batch(source, numbers, share=0.5)
    return {name: weight.grad for name, weight in run.drafter.named_parameters() if weight.grad is not None}


def main(features: Path, out: Path) -> None:
    torch.set_num_threads(1)
    group, source = join(torch.device("cpu")), FeatureStore(features)
    run = trainer(group, **CHANGES)
    run.run(source, None, out / "checkpoint.pt", quiet())
    result: dict[str, Any] = {
        "size": group.size,
        "losses": run.progress.losses,
        "weights": run.drafter.state_dict(),
        "gradients of 5": gradients(source, [0, 1, 2, 3, 4], group),
        "gradients of 1": gradients(source, [6], group),
    }
    group.close()
    result["threads"] = [name.read_text().strip() for name in Path("/proc/self/task").glob("*/comm")]
    torch.save(result, out / f"rank{group.rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
