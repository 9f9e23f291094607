"""What the engine, capture and training ask of a target: one call per forward.

Shapes: B sequences (one to a slot), M new tokens of each, A taps, H hidden, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from draftwing.target.cache import Cache
from draftwing.target.config import TargetConfig

Rows = Literal["all", "last", "none"]


@dataclass(frozen=True)
class Forward:
    """What one forward computed: logits of the rows asked for, and the tapped boundaries in the order asked for."""

    logits_BMV: Tensor | None
    taps_BMAH: Tensor | None


class Backend(Protocol):
    """A target that runs. New entries go behind the cached ones; the caller rolls back what it rejects."""

    config: TargetConfig
    cache: Cache

    def forward(
        self,
        tokens_BM: Tensor,
        slots: range,
        *,
        taps: tuple[int, ...] = (),
        logits: Rows = "all",
        positions_M: Tensor | None = None,
        visible_MM: Tensor | None = None,
    ) -> Forward:
        """Run M new tokens of each slot in `slots`.

        `positions_M` (counted from the slot's length; default 0..M-1) and `visible_MM` (row i sees new
        row j; default causal) describe a tree. Rows of cached tokens are visible to all.
        """
        ...

    def embed(self, tokens: Tensor) -> Tensor:
        """Embedding rows of any shape of token ids."""
        ...
