"""One process of a two-process run: trains on the features folder argv[1] and leaves losses and weights in argv[2]."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from draftwing.formats.features import FeatureStore
from draftwing.parallel.group import join
from tests.train.scenes import quiet, trainer

CHANGES = {"batch_tokens": 60}


def main(features: Path, out: Path) -> None:
    torch.set_num_threads(1)
    group = join(torch.device("cpu"), timeout_s=60)
    run = trainer(group, **CHANGES)
    run.run(FeatureStore(features), None, out / "checkpoint.pt", quiet())
    result = {"size": group.size, "losses": run.progress.losses, "weights": run.drafter.state_dict()}
    torch.save(result, out / f"rank{group.rank}.pt")
    group.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
