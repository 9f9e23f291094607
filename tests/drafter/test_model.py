"""The head's arithmetic, against the drawing in drafter/model.py spelled out in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from draftwing.ops.norm import rms_norm_reference
from draftwing.ops.rope import rotate_reference, rotation_table
from tests.drafter.small import random_drafter, small_config

CONFIG = small_config()
NAMES = """fc.weight midlayer.input_layernorm.weight midlayer.hidden_norm.weight midlayer.self_attn.q_proj.weight
    midlayer.self_attn.k_proj.weight midlayer.self_attn.v_proj.weight midlayer.self_attn.o_proj.weight
    midlayer.post_attention_layernorm.weight midlayer.mlp.gate_proj.weight midlayer.mlp.up_proj.weight
    midlayer.mlp.down_proj.weight norm.weight lm_head.weight""".split()


def rows(count: int, width: int, seed: int) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return rms_norm_reference(x, weight, CONFIG.norm_eps)


def test_parameter_names_are_those_of_the_authors_checkpoints() -> None:
    assert sorted(name for name, _ in random_drafter(CONFIG).named_parameters()) == sorted(NAMES)


def test_one_row_goes_through_the_head_as_drawn() -> None:
    """One row attends to itself alone, so what it attends to is its own value."""
    drafter = random_drafter(CONFIG).double()
    weight = {name: parameter.detach() for name, parameter in drafter.named_parameters()}
    feature, embedded = rows(1, 60, 1).double(), rows(1, 16, 2).double()
    fused = feature @ weight["fc.weight"].T
    mixed = torch.cat(
        [norm(embedded, weight["midlayer.input_layernorm.weight"]), norm(fused, weight["midlayer.hidden_norm.weight"])],
        -1,
    )
    value = (mixed @ weight["midlayer.self_attn.v_proj.weight"].T).view(2, 6)
    attended = value.repeat_interleave(2, 0).flatten()[None]
    # The residual is the fused state before its norm.
    state = fused + attended @ weight["midlayer.self_attn.o_proj.weight"].T
    x = norm(state, weight["midlayer.post_attention_layernorm.weight"])
    gated = F.silu(x @ weight["midlayer.mlp.gate_proj.weight"].T) * (x @ weight["midlayer.mlp.up_proj.weight"].T)
    state = state + gated @ weight["midlayer.mlp.down_proj.weight"].T
    logits = norm(state, weight["norm.weight"]) @ weight["lm_head.weight"].T

    one = torch.ones(1, 1, 6, dtype=torch.float64)
    ours = drafter.mix(embedded, drafter.fuse(feature))
    _, values = drafter.keys_values(ours, one, 0 * one)
    finished = drafter.finish(drafter.fuse(feature), values.repeat_interleave(2, 1).flatten(1))
    torch.testing.assert_close(ours, mixed)
    torch.testing.assert_close(finished, state)
    torch.testing.assert_close(drafter.logits(finished), logits)


def test_queries_and_keys_are_rotated_and_values_are_not() -> None:
    drafter = random_drafter(CONFIG)
    cos, sin = (table[:5, None] for table in rotation_table(CONFIG.rope, CONFIG.head_dim, 5))
    mixed = rows(5, 32, 3)
    attention = drafter.midlayer.self_attn
    keys, values = drafter.keys_values(mixed, cos, sin)
    queries = drafter.queries(mixed, cos, sin)
    torch.testing.assert_close(queries, rotate_reference(attention.q_proj(mixed).view(5, 4, 6), cos, sin))
    torch.testing.assert_close(keys, rotate_reference(attention.k_proj(mixed).view(5, 2, 6), cos, sin))
    assert torch.equal(values, attention.v_proj(mixed).view(5, 2, 6))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_products_follow_their_inputs_dtype_while_weights_stay_wide(dtype: torch.dtype) -> None:
    drafter = random_drafter(CONFIG)
    logits = drafter.logits(drafter.fuse(rows(2, 60, 4).to(dtype)))
    assert logits.dtype == dtype
    logits.float().sum().backward()
    assert drafter.fc.weight.grad is not None
    assert drafter.fc.weight.grad.dtype == torch.float32
