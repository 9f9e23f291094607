"""The probe for rounding between batch shapes sees what is planted, wherever it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from draftwing.measure.divergence import rounding_between_shapes
from draftwing.target.backend import Forward
from tests.law.models import tiny_target

TEXT = torch.randint(0, 256, (60,), generator=torch.Generator().manual_seed(0)).tolist()
PLANTED = 0.25


@pytest.mark.parametrize("rows", [2, 5, 9])
def test_a_planted_rounding_fault_is_reported(tiny_folder: Path, rows: int) -> None:
    """Last row of several computed together, one logit moved: far above what any processor rounds."""
    backend: Any = tiny_target(tiny_folder)[0].decoder(1, 100)
    real = backend.forward

    def faulty(tokens_BM: torch.Tensor, *args: Any, **kwargs: Any) -> Forward:
        out = real(tokens_BM, *args, **kwargs)
        if out.logits_BMV is not None and tokens_BM.shape[1] == rows:
            moved_BMV = out.logits_BMV.clone()
            moved_BMV[0, -1, 7] += PLANTED
            return Forward(moved_BMV, out.taps_BMAH)
        return out

    honest = rounding_between_shapes(backend, TEXT, rows)
    backend.forward = faulty
    found = rounding_between_shapes(backend, TEXT, rows)
    assert honest < 1e-3
    assert found == pytest.approx(PLANTED, abs=honest + 1e-6)
