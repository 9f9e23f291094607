"""Attention against its definition, on both sides of SHORT_QUERY, grouped heads, masks, strided keys.

Shapes: B sequences, M new tokens, T context, N query heads, K key heads, D head size.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from draftwing.ops.attention import SHORT_QUERY, attention, attention_reference

HEADS = [(6, 2), (4, 4), (9, 3), (4, 1)]
LENGTHS = [1, 3, SHORT_QUERY, SHORT_QUERY + 1, 40]


def _inputs(B: int, N: int, K: int, M: int, T: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(N * 100 + M)
    shapes = ((B, N, M, 16), (B, K, T, 16), (B, K, T, 16))
    return tuple((2 * torch.randn(shape, generator=generator)).to(dtype) for shape in shapes)


def _mask(B: int, M: int, T: int) -> Tensor:
    """Random visibility, other for each sequence and row; every row sees its own token."""
    visible = torch.rand(B, 1, M, T, generator=torch.Generator().manual_seed(M)) < 0.5
    visible[..., torch.arange(M), T - M + torch.arange(M)] = True
    return torch.zeros(B, 1, M, T).masked_fill_(~visible, float("-inf"))


@pytest.mark.parametrize("masks", [0, 1, 3], ids=["no-mask", "one-mask-for-all", "a-mask-each"])
@pytest.mark.parametrize("new", LENGTHS)
@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
def test_equals_the_definition(heads: int, kv_heads: int, new: int, masks: int) -> None:
    q, k, v = _inputs(3, heads, kv_heads, new, 50)
    mask = _mask(masks, new, 50) if masks else None
    untouched = mask.clone() if mask is not None else None
    out = attention(q, k, v, mask)
    assert out.shape == q.shape
    torch.testing.assert_close(out, attention_reference(q, k, v, mask), rtol=1e-5, atol=1e-5)
    assert mask is None or torch.equal(mask, untouched), "the caller's mask serves every layer"


@pytest.mark.parametrize("new", LENGTHS)
def test_the_definition_is_torchs_own(new: int) -> None:
    """The reference is checked too, against heads repeated by hand."""
    q, k, v = _inputs(2, 6, 2, new, 44)
    mask = _mask(2, new, 44)
    wide_k, wide_v = (x.repeat_interleave(3, dim=1) for x in (k, v))
    theirs = torch.nn.functional.scaled_dot_product_attention(q, wide_k, wide_v, attn_mask=mask)
    torch.testing.assert_close(attention_reference(q, k, v, mask), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("new", [2, SHORT_QUERY + 2])
def test_a_slice_of_a_longer_cache_gives_the_same(new: int) -> None:
    q, k, v = _inputs(2, 6, 2, new, 30)
    stores = [torch.full((2, 2, 64, 16), 1e4) for _ in range(2)]
    for store, values in zip(stores, (k, v), strict=True):
        store[:, :, :30] = values
    out = attention(q, stores[0][:, :, :30], stores[1][:, :, :30], None)
    torch.testing.assert_close(out, attention(q, k, v, None))


@pytest.mark.parametrize("new", [1, SHORT_QUERY + 2])
def test_masked_entries_have_no_part(new: int) -> None:
    q, k, v = _inputs(1, 6, 2, new, 30)
    mask = torch.zeros(1, 1, new, 30)
    mask[..., 11:] = float("-inf")
    out = attention(q, k, v, mask)
    torch.testing.assert_close(out, attention_reference(q, k[:, :, :11], v[:, :, :11], None), rtol=1e-5, atol=1e-5)
    v[:, :, 11:] = 7e4
    assert torch.equal(attention(q, k, v, mask), out)


@pytest.mark.parametrize("new", [1, SHORT_QUERY, SHORT_QUERY + 1])
def test_bfloat16_is_near_the_definition(new: int) -> None:
    q, k, v = _inputs(1, 6, 2, new, 50, torch.bfloat16)
    wide = attention_reference(q.float(), k.float(), v.float(), None)
    assert (attention(q, k, v, None).float() - wide).norm() / wide.norm() < 0.02
