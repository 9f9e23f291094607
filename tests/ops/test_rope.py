"""Rope: frequencies against transformers, the rotation against complex products, configs read in each spelling.

Shapes: D head size, P positions.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from draftwing.core.errors import UserError
from draftwing.ops.rope import Rope, inverse_frequencies, rope_from_config, rotate, rotate_reference, rotation_table

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32768}
DEEPSEEK = {"mscale": 1.0, "mscale_all_dim": 0.8}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("default", {}),
    "linear": ("linear", {"factor": 2.5}),
    "llama3": ("llama3", LLAMA3),
    "llama3, other bands": ("llama3", {**LLAMA3, "factor": 32.0, "high_freq_factor": 16.0}),
    "yarn": ("yarn", YARN),
    "yarn, original length not stated": ("yarn", {"factor": 4.0}),
    "yarn, attention factor": ("yarn", {**YARN, "attention_factor": 1.7}),
    "yarn, mscale": ("yarn", {**YARN, **DEEPSEEK}),
    "yarn, betas": ("yarn", {**YARN, "beta_fast": 20.0, "beta_slow": 2.0}),
    "yarn, not truncated": ("yarn", {**YARN, "truncate": False}),
    "yarn, factor 1": ("yarn", {**YARN, "factor": 1.0}),
}


def _config(kind: str, theta: float, head_dim: int, changes: dict[str, Any]) -> LlamaConfig:
    rope = {"rope_type": kind, "rope_theta": theta, **changes}
    return LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=65536,
        rope_parameters=rope,
    )


@pytest.mark.parametrize("head_dim", [16, 64, 128])
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize(("kind", "changes"), KINDS.values(), ids=KINDS.keys())
def test_frequencies_and_factor_equal_transformers(
    kind: str, changes: dict[str, Any], theta: float, head_dim: int
) -> None:
    config = _config(kind, theta, head_dim, changes)
    ours, factor = inverse_frequencies(rope_from_config(config.to_dict()), head_dim)
    if kind == "default":
        theirs, their_factor = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    else:
        theirs, their_factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=0.0)
    assert factor == pytest.approx(their_factor, rel=1e-12)


def test_each_kind_has_frequencies_of_its_own() -> None:
    """No case of the table is another one in disguise, so a kind or key that is ignored is caught above."""
    seen: list[torch.Tensor] = []
    for kind, changes in KINDS.values():
        frequency, factor = inverse_frequencies(rope_from_config(_config(kind, 10000.0, 64, changes).to_dict()), 64)
        seen.append(torch.cat([frequency, torch.tensor([factor])]))
    plain = seen[0]
    assert torch.allclose(seen.pop(), plain, rtol=1e-5), "yarn of factor 1 is the default"
    for place, one in enumerate(seen):
        assert not any(torch.allclose(one, other, rtol=1e-3, atol=0.0) for other in seen[:place])


@pytest.mark.parametrize(("kind", "changes"), KINDS.values(), ids=KINDS.keys())
def test_rotation_equals_transformers(kind: str, changes: dict[str, Any]) -> None:
    config = _config(kind, 10000.0, 32, changes)
    cos, sin = rotation_table(rope_from_config(config.to_dict()), 32, 50)
    x = torch.randn(1, 4, 50, 32, generator=torch.Generator().manual_seed(0))
    theirs, _ = apply_rotary_pos_emb(x, x, *LlamaRotaryEmbedding(config)(x, torch.arange(50)[None]))
    torch.testing.assert_close(rotate(x, cos, sin), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rotate_equals_its_reference(dtype: torch.dtype) -> None:
    cos, sin = rotation_table(Rope(theta=10000.0), 16, 300)
    x = torch.randn(2, 3, 300, 16, dtype=dtype, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(rotate(x, cos.to(dtype), sin.to(dtype)), rotate_reference(x, cos, sin))


def test_a_rotation_keeps_length_and_depends_on_distance_only() -> None:
    """q at p against k at p + 7 scores the same wherever p is; position 0 is no rotation."""
    cos, sin = rotation_table(Rope(theta=10000.0), 16, 100)
    q, k = torch.randn(2, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    at = [(rotate(q, cos[p], sin[p]) @ rotate(k, cos[p + 7], sin[p + 7])).item() for p in (0, 1, 50, 92)]
    assert at == pytest.approx([at[0]] * 4, rel=1e-4)
    assert rotate(q, cos[60], sin[60]).norm().item() == pytest.approx(q.norm().item(), rel=1e-6)
    assert torch.equal(rotate(q, cos[0], sin[0]), q)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"rope_theta": 1e6}, Rope(theta=1e6)),
        ({"rope_theta": 1e6, "rope_scaling": None}, Rope(theta=1e6)),
        ({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}, Rope(theta=1e6)),
        ({"rope_theta": 1e6, "rope_parameters": {"rope_theta": 1e6}}, Rope(theta=1e6)),
        (
            {"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 2.0}},
            Rope(theta=1e6, kind="linear", factor=2.0),
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
            Rope(
                theta=5e5,
                kind="llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position=8192,
            ),
        ),
        (
            {
                "rope_theta": 1e6,
                "max_position_embeddings": 4096,
                "rope_scaling": {"rope_type": "yarn", "type": "yarn", "factor": 4.0},
            },
            Rope(theta=1e6, kind="yarn", factor=4.0, original_max_position=4096),
        ),
    ],
    ids=["flat", "null-scaling", "nested", "twice-the-same", "type", "llama3", "yarn"],
)
def test_each_spelling_is_read(config: dict[str, Any], expected: Rope) -> None:
    assert rope_from_config(config) == expected


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "states no rope base"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "states no rope base"),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6}}, r"two rope bases, \[10000.0, 1000000.0\]"),
        (
            {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "rope_type": "llama3", **LLAMA3}},
            "two values of rope_type, 'linear' and 'llama3'",
        ),
        (
            {
                "rope_theta": 1e4,
                "rope_scaling": {"rope_type": "linear", "factor": 2.0},
                "rope_parameters": {"rope_type": "linear", "factor": 4.0},
            },
            r"two values of factor, (2\.0 and 4\.0|4\.0 and 2\.0)",
        ),
        ({"rope_theta": 1e4, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "kind 'dynamic' is not"),
        ({"rope_theta": 1e4, "rope_parameters": {"mrope_section": [1, 2]}}, "not known here: mrope_section"),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "lacks original_max_position"),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_type": "llama3", "factor": 2.0}}, "lacks .*low_freq_factor"),
    ],
)
def test_a_rope_that_is_not_understood_is_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        rope_from_config(config)
