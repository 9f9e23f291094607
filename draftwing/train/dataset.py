"""Where training samples come from: a features folder, or the target run again on answers that are known."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from draftwing.formats.features import Sample


class SampleSource(Protocol):
    """Samples by number. `formats.features.FeatureStore` is one; `capture.on_the_fly` makes the other."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Sample: ...

    def lengths(self) -> list[int]:
        """Tokens of each sample."""
        ...

    def response_counts(self, vocab_size: int) -> Tensor:
        """How often each target token occurs in responses [V]."""
        ...
