"""The target's key-value cache: allocated once, rolled back by setting a length.

Shapes: L layers, S slots, K key-value heads, C capacity in tokens, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftwing.core.errors import UserError


class Cache:
    """Keys and values of S independent sequences; a slot's entries past its length are never read as live."""

    def __init__(
        self,
        layers: int,
        slots: int,
        kv_heads: int,
        capacity: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (layers, slots, kv_heads, capacity, head_dim)
        # Zeros, not garbage: in a batch, masked entries are multiplied by a weight of exactly 0, and 0 x NaN is NaN.
        self.keys_LSKCD: Tensor = torch.zeros(shape, dtype=dtype, device=device)
        self.values_LSKCD: Tensor = torch.zeros(shape, dtype=dtype, device=device)
        self.lengths = [0] * slots
        self.capacity = capacity

    def rollback(self, slot: int, length: int) -> None:
        """Forget everything from `length` on in one slot."""
        if not 0 <= length <= self.lengths[slot]:
            raise ValueError(f"rollback of slot {slot} to {length}, it holds {self.lengths[slot]}")
        self.lengths[slot] = length

    def keep(self, slot: int, base: int, rows: list[int]) -> None:
        """Of the entries written from `base` on, keep `rows` (offsets from base, rising) and forget the rest.

        A chain keeps a prefix, which costs nothing; a path through a tree is moved together.
        """
        if rows != list(range(len(rows))):
            source = torch.tensor(rows, device=self.keys_LSKCD.device) + base
            for store in (self.keys_LSKCD, self.values_LSKCD):
                store[:, slot, :, base : base + len(rows)] = store[:, slot].index_select(2, source)
        self.rollback(slot, base + len(rows))

    def require_room(self, slots: range, new_tokens: int) -> None:
        """UserError when a slot can not take the new tokens."""
        longest = max(self.lengths[slot] for slot in slots)
        if longest + new_tokens > self.capacity:
            raise UserError(
                f"{longest + new_tokens} tokens do not fit a context of {self.capacity}.",
                "Shorten the prompt or the answer, or raise --context if the model allows more.",
            )
