"""The norm against its reference and by its definition."""

from __future__ import annotations

import pytest
import torch

from draftwing.ops.norm import rms_norm, rms_norm_reference


@pytest.mark.parametrize("eps", [1e-6, 1e-5, 0.1])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_equals_its_reference(scale: float, eps: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(3, 5, 48, generator=generator) * scale, torch.randn(48, generator=generator)
    torch.testing.assert_close(rms_norm(x, weight, eps), rms_norm_reference(x, weight, eps), rtol=2e-6, atol=1e-7)


def test_the_weight_may_be_of_another_dtype() -> None:
    x = torch.randn(4, 48, generator=torch.Generator().manual_seed(1)).bfloat16()
    out = rms_norm(x, torch.full((48,), 1.5), 1e-5)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(
        out.float(), rms_norm_reference(x.float(), torch.full((48,), 1.5), 1e-5), rtol=1e-2, atol=1e-2
    )


def test_the_root_mean_square_becomes_one() -> None:
    x = torch.randn(7, 64, generator=torch.Generator().manual_seed(2)) * 9 + 3
    out = rms_norm(x, torch.ones(64), 0.0)
    torch.testing.assert_close(out.square().mean(-1), torch.ones(7))
    torch.testing.assert_close(rms_norm(x * 5, torch.ones(64), 0.0), out)


def test_bfloat16_is_summed_in_float32() -> None:
    """4096 squares of 1: a sum in bfloat16 stops at 256."""
    out = rms_norm(torch.ones(1, 4096, dtype=torch.bfloat16), torch.ones(4096), 0.0)
    assert torch.equal(out, torch.ones_like(out))
