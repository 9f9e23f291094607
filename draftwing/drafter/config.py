"""Sizes and rope of one drafter."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from draftwing.ops.rope import Rope


class DrafterConfig(BaseModel):
    """An EAGLE-3 head of one Llama-style layer.

    Conventions that other systems leave open are fixed here: the residual is the fused state before its
    norm; the state fed back is the layer's output before the final norm; the pair (feature i, token i + 1)
    stands at position i.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    hidden_size: int
    target_hidden_size: int
    taps: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    draft_vocab_size: int
    norm_eps: float
    max_context: int
    rope: Rope
