"""The EAGLE-3 head (arXiv 2503.01840, section 3; tensors as in the checkpoints of its authors).

    features f_i [A * Ht] --fc--> state g_i [H]            (or the state fed back by the step before)
    embedding of token i + 1 --input_layernorm--+
                                                +--concat [2H]--> attention --+--> mlp --> state [H] --norm--> head [Vd]
    g_i ------------------------hidden_norm-----+                             |
     +-----------------------------residual-----------------------------------+

The model computes rows and knows neither cache nor loss: training and decoding attend in their own
ways between `queries`/`keys_values` and `finish`. Weights may be wider than activations (float32
weights under bfloat16 arithmetic in training): each product casts the weight to its input.

Shapes: R rows in any leading dimensions, H drafter hidden, Ht target hidden, A taps, N query heads,
K key-value heads, D head size, Vd draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwing.drafter.config import DrafterConfig
from draftwing.ops.linear import Product
from draftwing.ops.norm import rms_norm
from draftwing.ops.rope import rotate


class _Linear(nn.Linear):
    """A product without bias whose weight follows its input's dtype."""

    def __init__(self, width: int, rows: int) -> None:
        super().__init__(width, rows, bias=False)
        self._frozen: Product | None = None
        self._narrow: Tensor | None = None

    def freeze(self) -> None:
        """From now on the weight does not change: lay it out for the processor."""
        self._frozen = Product(self.weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        return self._frozen(x) if self._frozen else F.linear(x, self.cast(x.dtype))

    def cast(self, dtype: torch.dtype) -> Tensor:
        """The weight in a dtype, with gradients to itself: the cast that is held, or one of its own."""
        return self._narrow if self._narrow is not None else self.weight.to(dtype)

    def hold(self, dtype: torch.dtype | None) -> None:
        """Cast now, for every product until this is called with None."""
        self._narrow = None if dtype is None else self.weight.to(dtype)


class _Norm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self._eps)


class _Attention(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        wide, D = 2 * config.hidden_size, config.head_dim
        self.q_proj = _Linear(wide, config.heads * D)
        self.k_proj = _Linear(wide, config.kv_heads * D)
        self.v_proj = _Linear(wide, config.kv_heads * D)
        self.o_proj = _Linear(config.heads * D, config.hidden_size)


class _Mlp(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = _Linear(config.hidden_size, config.intermediate_size)
        self.up_proj = _Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = _Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class _Layer(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        H, eps = config.hidden_size, config.norm_eps
        self.input_layernorm = _Norm(H, eps)
        self.hidden_norm = _Norm(H, eps)
        self.self_attn = _Attention(config)
        self.post_attention_layernorm = _Norm(H, eps)
        self.mlp = _Mlp(config)


class Drafter(nn.Module):
    """The head. Parameter names are the checkpoint's tensor names."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = _Linear(config.taps * config.target_hidden_size, config.hidden_size)
        self.midlayer = _Layer(config)
        self.norm = _Norm(config.hidden_size, config.norm_eps)
        self.lm_head = _Linear(config.hidden_size, config.draft_vocab_size)

    def freeze(self) -> Drafter:
        """Make it a drafter for decoding only: no gradients, weights laid out for the processor. Returns itself."""
        self.eval().requires_grad_(False)
        for module in self.modules():
            if isinstance(module, _Linear):
                module.freeze()
        return self

    @contextmanager
    def casting_once(self, dtype: torch.dtype) -> Iterator[None]:
        """Inside, each weight is cast once and not once a product; its gradient comes back as one sum in `dtype`."""
        linears = [module for module in self.modules() if isinstance(module, _Linear)]
        for linear in linears:
            linear.hold(dtype)
        try:
            yield
        finally:
            for linear in linears:
                linear.hold(None)

    def fuse(self, features: Tensor) -> Tensor:
        """States [R, H] of features [R, A * Ht]."""
        out: Tensor = self.fc(features)
        return out

    def mix(self, embedded: Tensor, state: Tensor) -> Tensor:
        """The attention's input [R, 2H] from token embeddings and states [R, H]."""
        return torch.cat([self.midlayer.input_layernorm(embedded), self.midlayer.hidden_norm(state)], -1)

    def queries(self, mixed: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotated queries [R, N, D]; cos and sin [R, 1, D]."""
        return rotate(self.midlayer.self_attn.q_proj(mixed).unflatten(-1, (-1, self.config.head_dim)), cos, sin)

    def keys_values(self, mixed: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated keys and values [R, K, D]."""
        attention, D = self.midlayer.self_attn, self.config.head_dim
        keys = attention.k_proj(mixed).unflatten(-1, (-1, D))
        return rotate(keys, cos, sin), attention.v_proj(mixed).unflatten(-1, (-1, D))

    def finish(self, state: Tensor, attended: Tensor) -> Tensor:
        """The next states [R, H] from this step's states and what attention gave [R, N * D]."""
        state = state + self.midlayer.self_attn.o_proj(attended)
        out: Tensor = state + self.midlayer.mlp(self.midlayer.post_attention_layernorm(state))
        return out

    def logits(self, state: Tensor) -> Tensor:
        """Logits [R, Vd] over the draft vocabulary."""
        out: Tensor = self.lm_head(self.norm(state))
        return out
