"""What a target's config.json says, in one record; everything it does not cover is refused by name."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from draftwing.core.errors import UserError
from draftwing.formats.files import read_object
from draftwing.ops.rope import Rope, rope_from_config

FAMILIES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}

# Keys that change no number that this decoder computes.
_HARMLESS = frozenset(
    """_name_or_path _attn_implementation architectures attention_dropout bos_token_id chunk_size_feed_forward dtype
    initializer_range is_llama_config keys_to_ignore_at_inference layer_types max_window_layers model_type
    output_attentions output_hidden_states pad_token_id pretraining_tp quantization_config return_dict
    rope_interleaved rope_parameters rope_scaling rope_theta sliding_window tie_word_embeddings tokenizer_class
    torch_dtype transformers.js_config transformers_version unk_token_id use_cache use_sliding_window""".split()
)
_READ = frozenset(
    """hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim intermediate_size rms_norm_eps
    max_position_embeddings attention_bias mlp_bias hidden_act eos_token_id vocab_size""".split()
)


@dataclass(frozen=True)
class TargetConfig:
    """Sizes and switches of one target. n in `design.md` is `layers`."""

    name: str
    family: str
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    norm_eps: float
    max_context: int
    rope: Rope
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    head_norms: bool
    tied: bool
    eos_ids: tuple[int, ...]


def read_target_config(folder: Path, ignore_keys: tuple[str, ...] = ()) -> TargetConfig:
    """Read `folder/config.json`. Raises UserError for other architectures and for keys that are not understood."""
    raw = read_object(folder / "config.json", "target config", "Give a model folder with config.json, or a hub id.")
    return parse_target_config(raw, folder.name, ignore_keys)


def parse_target_config(raw: dict[str, Any], name: str, ignore_keys: tuple[str, ...] = ()) -> TargetConfig:
    """The same from the parsed JSON; `ignore_keys` are those that the user says change nothing."""
    architecture = (raw.get("architectures") or ["none stated"])[0]
    if architecture not in FAMILIES:
        raise UserError(
            f"{name} has the architecture {architecture}.", f"Targets supported here: {', '.join(FAMILIES)}."
        )
    family = FAMILIES[architecture]
    unknown = sorted(set(raw) - _HARMLESS - _READ - set(ignore_keys))
    if unknown:
        raise UserError(
            f"The config of {name} has keys that are not known here: {', '.join(unknown)}.",
            f"If they change no result, repeat with --ignore-config-key {unknown[0]}.",
        )
    if raw.get("quantization_config"):
        raise UserError(f"{name} is quantised (quantization_config).", "Give its unquantised safetensors.")
    if raw.get("hidden_act", "silu") != "silu":
        raise UserError(f"{name} uses the activation {raw['hidden_act']!r}.", "Only silu is implemented.")
    sizes = {
        key: _required(raw, key, name)
        for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    }
    heads = int(sizes["num_attention_heads"])
    bias = bool(raw.get("attention_bias", False))
    eos = raw.get("eos_token_id")
    eos_ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if not all(isinstance(token, int) for token in eos_ids):
        raise UserError(
            f"The config of {name} says eos_token_id is {eos!r}.", "It must be a token id, or a list of them."
        )
    return TargetConfig(
        name=name,
        family=family,
        layers=int(sizes["num_hidden_layers"]),
        hidden_size=int(sizes["hidden_size"]),
        heads=heads,
        kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or sizes["hidden_size"] // heads),
        intermediate_size=int(sizes["intermediate_size"]),
        vocab_size=int(sizes["vocab_size"]),
        norm_eps=float(_required(raw, "rms_norm_eps", name)),
        max_context=_max_context(raw, family, name),
        rope=rope_from_config(raw),
        qkv_bias=family == "qwen2" or bias,
        output_bias=bias and family in {"llama", "qwen3"},
        mlp_bias=bool(raw.get("mlp_bias", False)),
        head_norms=family == "qwen3",
        tied=bool(raw.get("tie_word_embeddings", False)),
        eos_ids=tuple(eos_ids),
    )


def _required(raw: dict[str, Any], key: str, name: str) -> float:
    value = raw.get(key)
    if value is None:
        raise UserError(f"The config of {name} does not state {key}.", "Add it to config.json.")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"The config of {name} says {key} is {value!r}.", "It must be a number.")
    return value


def _max_context(raw: dict[str, Any], family: str, name: str) -> int:
    """Positions the decoder may use. Inside a sliding window, windowed and full attention are the same,
    so a window becomes the limit."""
    limit = int(_required(raw, "max_position_embeddings", name))
    windowed = raw.get("use_sliding_window", family == "mistral")
    # A Mistral config that does not mention the window has transformers' default one.
    window = raw.get("sliding_window", 4096 if family == "mistral" else None)
    if windowed and window:
        limit = min(limit, int(window))
    return limit


def default_taps(config: TargetConfig) -> tuple[int, int, int]:
    """The usual boundaries B_2, B_{n//2}, B_{n-3} (EAGLE-3's); UserError for targets too small to have them."""
    n = config.layers
    if n < 7:
        raise UserError(
            f"{config.name} has {n} layers, too few for the usual taps B_2, B_n//2, B_n-3.",
            f"Name three boundaries between 0 and {n} with --taps, low to high.",
        )
    return (2, n // 2, n - 3)


def require_taps(taps: tuple[int, ...], layers: int) -> None:
    """UserError unless taps are boundaries 0..n, strictly rising."""
    if not taps or any(not 0 <= tap <= layers for tap in taps) or any(a >= b for a, b in pairwise(taps)):
        raise UserError(
            f"Taps {list(taps)} do not fit a target of {layers} layers.",
            f"Taps are boundaries, low to high: numbers from 0 (embedding) to {layers} (before the final norm).",
        )
