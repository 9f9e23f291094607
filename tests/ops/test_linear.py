"""Products with a weight that was laid out once: the same numbers, any number of rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from draftwing.ops import linear
from draftwing.ops.linear import Product, can_pack


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 24), (4, 24), (1, 1, 24), (2, 7, 24), (600, 24)], ids=str)
def test_a_product_is_the_plain_one(
    shape: tuple[int, ...], bias: bool, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not packed:
        monkeypatch.setattr(linear, "can_pack", lambda weight: False)
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(37, 24, generator=generator), torch.randn(*shape, generator=generator)
    bias_O = torch.randn(37, generator=generator) if bias else None
    with torch.inference_mode():
        out = Product(weight, bias_O)(x)
    torch.testing.assert_close(out, F.linear(x, weight, bias_O), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_packed_product_does_not_hold_the_weight_twice(dtype: torch.dtype) -> None:
    weight = torch.randn(64, 32).to(dtype)
    product = Product(weight)
    assert product._weight_OI.numel() == (0 if can_pack(weight) else weight.numel())


def test_dtypes_without_a_packed_product_go_the_plain_way() -> None:
    weight = torch.randn(8, 4, dtype=torch.float64)
    assert not can_pack(weight)
    x = torch.randn(3, 4, dtype=torch.float64)
    assert torch.equal(Product(weight)(x), F.linear(x, weight))
