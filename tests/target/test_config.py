"""What config.json says in TargetConfig: taps that fit, the context limit, defaults of absent keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from transformers import MistralConfig

from draftwing.core.errors import UserError
from draftwing.target.config import TargetConfig, default_taps, parse_target_config, require_taps
from draftwing.target.load import pick_device, pick_dtype

PLAIN: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "intermediate_size": 80,
    "vocab_size": 272,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "rope_theta": 10000.0,
}


def _parse(architecture: str = "Llama", **changes: Any) -> TargetConfig:
    return parse_target_config({**PLAIN, "architectures": [f"{architecture}ForCausalLM"], **changes}, "tiny")


def test_absent_keys_take_the_familys_meaning() -> None:
    config = _parse()
    assert (config.heads, config.kv_heads, config.head_dim) == (6, 6, 8)
    assert (config.tied, config.qkv_bias, config.output_bias, config.mlp_bias, config.head_norms) == (False,) * 5
    assert config.eos_ids == ()
    assert config.max_context == 8192
    assert config.rope.theta == 10000.0


@pytest.mark.parametrize(
    ("architecture", "changes", "expected"),
    [
        ("Llama", {"attention_bias": True}, (True, True, False)),
        ("Llama", {"mlp_bias": True}, (False, False, False)),
        ("Mistral", {}, (False, False, False)),
        ("Qwen2", {}, (True, False, False)),
        ("Qwen3", {}, (False, False, True)),
        ("Qwen3", {"attention_bias": True}, (True, True, True)),
    ],
)
def test_biases_and_head_norms_by_family(
    architecture: str, changes: dict[str, Any], expected: tuple[bool, ...]
) -> None:
    config = _parse(architecture, **changes)
    assert (config.qkv_bias, config.output_bias, config.head_norms) == expected


@pytest.mark.parametrize(("stated", "ids"), [(None, ()), (2, (2,)), ([2, 7], (2, 7)), (0, (0,))])
def test_end_tokens_may_be_one_or_several(stated: Any, ids: tuple[int, ...]) -> None:
    assert _parse(eos_token_id=stated).eos_ids == ids


MISTRAL_DEFAULT = pytest.param("Mistral", {}, MistralConfig().sliding_window)


@pytest.mark.parametrize(
    ("architecture", "changes", "limit"),
    [
        ("Mistral", {"sliding_window": None}, 8192),
        ("Mistral", {"sliding_window": 1024}, 1024),
        ("Mistral", {"sliding_window": 10000}, 8192),
        ("Qwen2", {"sliding_window": 1024}, 8192),
        ("Qwen2", {"sliding_window": 1024, "use_sliding_window": False}, 8192),
        ("Qwen2", {"sliding_window": 1024, "use_sliding_window": True}, 1024),
        ("Qwen3", {"sliding_window": None, "use_sliding_window": True}, 8192),
        MISTRAL_DEFAULT,
    ],
)
def test_a_sliding_window_in_use_is_the_limit(architecture: str, changes: dict[str, Any], limit: int) -> None:
    assert _parse(architecture, **changes).max_context == limit


@pytest.mark.parametrize("layers", [1, 3, 4, 6])
def test_small_targets_have_no_usual_taps(layers: int) -> None:
    """T7: B_2, B_{n//2}, B_{n-3} would repeat or fall; the message asks for taps by name."""
    with pytest.raises(UserError, match=rf"{layers} layers, too few .* Name three boundaries between 0 and {layers}"):
        default_taps(replace(_parse(), layers=layers))


@pytest.mark.parametrize(("layers", "taps"), [(7, (2, 3, 4)), (8, (2, 4, 5)), (30, (2, 15, 27)), (61, (2, 30, 58))])
def test_usual_taps_are_rising_boundaries(layers: int, taps: tuple[int, ...]) -> None:
    assert default_taps(replace(_parse(), layers=layers)) == taps
    require_taps(taps, layers)


@pytest.mark.parametrize("taps", [(0,), (0, 8), (8,), (3, 5, 7), (0, 1, 2, 3, 4, 5, 6, 7, 8)])
def test_any_rising_boundaries_are_taps(taps: tuple[int, ...]) -> None:
    require_taps(taps, 8)


@pytest.mark.parametrize("taps", [(), (-1, 2, 4), (2, 2, 4), (4, 2, 5), (2, 4, 9)])
def test_taps_that_are_not_rising_boundaries_are_refused(taps: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"do not fit a target of 8 layers.*from 0 .*to 8 "):
        require_taps(taps, 8)


@pytest.mark.parametrize("device", ["cuda", pytest.param("gpu")])
def test_a_device_that_is_not_there_is_refused(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match="--device cpu"):
        pick_device(device)


def test_a_dtype_that_is_not_known_is_refused() -> None:
    with pytest.raises(UserError, match=r"no dtype 'int4'.*Choose auto, bfloat16, float32, float16"):
        pick_dtype("int4", pick_device("cpu"))
