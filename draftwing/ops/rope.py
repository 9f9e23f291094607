"""Rotary position embedding: frequencies by configuration, and the rotation.

Shapes: B sequences, M tokens, N heads, D head size, P positions in the table.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from draftwing.core.errors import UserError

RopeKind = Literal["default", "linear", "llama3", "yarn"]


class Rope(BaseModel):
    """Rope parameters as trained. Names are those of the Hugging Face `rope_parameters` field."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    theta: float
    kind: RopeKind = "default"
    factor: float = 1.0
    original_max_position: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


# Spelling in a Hugging Face config -> ours.
_RENAMED = {
    "rope_theta": "theta",
    "rope_type": "kind",
    "type": "kind",
    "original_max_position_embeddings": "original_max_position",
}


def rope_from_config(config: dict[str, Any]) -> Rope:
    """Read rope of a Hugging Face config: `rope_parameters`, or `rope_theta` with `rope_scaling`.

    Raises UserError when the base is stated nowhere, stated twice with different values, or the
    kind is one that this project does not implement.
    """
    parts = [config.get(name) or {} for name in ("rope_scaling", "rope_parameters")]
    if not all(isinstance(part, dict) for part in parts):
        raise UserError("The config's rope_scaling or rope_parameters is no object.", "Mend it in config.json.")
    nested = {**parts[0], **parts[1]}
    stated = [place["rope_theta"] for place in (config, nested) if place.get("rope_theta") is not None]
    if not all(isinstance(base, int | float) for base in stated):
        raise UserError(f"The config's rope_theta is {stated}.", "It must be a number.")
    bases = {float(base) for base in stated}
    if len(bases) != 1:
        problem = f"states two rope bases, {sorted(bases)}" if bases else "states no rope base (rope_theta)"
        raise UserError(
            f"The config {problem}.", "Put the one base it was trained with into config.json as rope_theta."
        )
    fields: dict[str, Any] = {}
    for key, value in ((key, value) for part in parts for key, value in part.items() if value is not None):
        name = _RENAMED.get(key, key)
        if name != "theta" and fields.setdefault(name, value) != value:
            raise UserError(
                f"The config's rope states two values of {key}, {fields[name]!r} and {value!r}.",
                "Keep the one that it was trained with.",
            )
    fields["theta"] = bases.pop()
    kind = fields.setdefault("kind", "default")
    if kind not in RopeKind.__args__:  # type: ignore[attr-defined]
        raise UserError(
            f"Rope of kind {kind!r} is not implemented.",
            f"Use a model with one of {', '.join(RopeKind.__args__)}.",  # type: ignore[attr-defined]
        )
    unknown = sorted(set(fields) - set(Rope.model_fields))
    if unknown:
        raise UserError(
            f"The config's rope has keys that are not known here: {', '.join(unknown)}.",
            "Remove them if they change nothing, or ask for support.",
        )
    needs = {
        "llama3": ("original_max_position", "low_freq_factor", "high_freq_factor"),
        "yarn": ("original_max_position",),
    }
    if kind == "yarn" and "original_max_position" not in fields and config.get("max_position_embeddings"):
        # transformers takes max_position_embeddings as the original length when it is not stated.
        fields["original_max_position"] = int(config["max_position_embeddings"])
    if kind != "default" and fields.get("factor") is None:
        raise UserError(f"Rope of kind {kind} lacks factor.", "Add it to rope_parameters in config.json.")
    missing = [name for name in needs.get(kind, ()) if fields.get(name) is None]
    if missing:
        raise UserError(
            f"Rope of kind {kind} lacks {', '.join(missing)}.", "Add them to rope_parameters in config.json."
        )
    try:
        return Rope(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"The config's rope: {first['loc'][0]}: {first['msg']}.", "Mend it in config.json.") from None


def inverse_frequencies(rope: Rope, head_dim: int) -> tuple[Tensor, float]:
    """Return (frequencies [D/2] float32, factor on cos and sin), as the model families define them.

    Sources: RoFormer (default); position interpolation (linear); Llama 3.1's banded scaling;
    YaRN (arXiv 2309.00071), with the attention factor of its section 3.4.
    """
    exponent_h = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain_h = 1.0 / rope.theta**exponent_h
    if rope.kind == "default":
        return plain_h, 1.0
    if rope.kind == "linear":
        return plain_h / rope.factor, 1.0
    if rope.kind == "llama3":
        return _llama3(rope, plain_h), 1.0
    return _yarn(rope, plain_h, head_dim), _yarn_attention_factor(rope)


def _llama3(rope: Rope, plain_h: Tensor) -> Tensor:
    assert rope.original_max_position and rope.low_freq_factor and rope.high_freq_factor
    wavelength_h = 2 * math.pi / plain_h
    share_h = (rope.original_max_position / wavelength_h - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    share_h = share_h.clamp(0.0, 1.0)
    return (1 - share_h) * plain_h / rope.factor + share_h * plain_h


def _yarn(rope: Rope, plain_h: Tensor, head_dim: int) -> Tensor:
    assert rope.original_max_position

    def dimension_of(rotations: float) -> float:
        """The (fractional) dimension whose wavelength fits `rotations` times into the original length."""
        return head_dim * math.log(rope.original_max_position / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))  # type: ignore[operator]

    low, high = dimension_of(rope.beta_fast), dimension_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp_h = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
    ramp_h = ramp_h.clamp(0.0, 1.0)
    return plain_h / rope.factor * ramp_h + plain_h * (1 - ramp_h)


def _yarn_attention_factor(rope: Rope) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor

    def scale(weight: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * weight * math.log(rope.factor) + 1.0

    if rope.mscale and rope.mscale_all_dim:
        return scale(rope.mscale) / scale(rope.mscale_all_dim)
    return scale(1.0)


def rotation_table(rope: Rope, head_dim: int, positions: int) -> tuple[Tensor, Tensor]:
    """Return cos [P, D] and signed sin [P, D], so that rotate(x) = x * cos + roll(x, D/2) * sin."""
    frequency_h, factor = inverse_frequencies(rope, head_dim)
    angle_PH = torch.arange(positions, dtype=torch.float32)[:, None] * frequency_h
    cos_PH, sin_PH = angle_PH.cos() * factor, angle_PH.sin() * factor
    return torch.cat([cos_PH, cos_PH], -1), torch.cat([-sin_PH, sin_PH], -1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the last dimension of x; cos and sin come from `rotation_table` and broadcast against it."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def rotate_reference(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The rotation written as complex products: pairs (d, d + D/2) turn by their angle."""
    half = x.shape[-1] // 2
    turned = torch.complex(x[..., :half].double(), x[..., half:].double()) * torch.complex(
        cos[..., half:].double(), sin[..., half:].double()
    )
    return torch.cat([turned.real, turned.imag], -1).to(x.dtype)
