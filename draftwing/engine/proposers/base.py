"""What the engine asks of a proposer. A new one implements `Proposer` and is handed to the engine; nothing else."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from draftwing.engine.tree import Candidates


@dataclass(frozen=True)
class Ask:
    """What is wanted: at most `nodes` candidates, none deeper than `depth`, at most `width` children of a node.

    `chance(name, bucket, prior)` turns a proposer's own belief into what has been observed of candidates alike. Time
    is worth `rate` tokens a second, and a candidate is verified when it is likelier than `worth`; both are 0 when the
    size of the tree is given, and a proposer then goes to the depth that is asked for.
    """

    nodes: int
    depth: int
    width: int
    chance: Callable[[str, Hashable, float], float]
    rate: float = 0.0
    worth: float = 0.0


class Proposer(Protocol):
    """One source of candidates, at work on one sequence."""

    name: str
    taps: tuple[int, ...]
    """Boundaries of the target whose states it wants of every committed token; () for none."""
    note: str | None
    """What a user should know of the sequence under way, say why nothing is proposed any more."""

    def begin(self, token: int) -> None:
        """Forget the sequence; a new one begins with this token."""
        ...

    def extend(self, tokens: list[int], features_MF: Tensor | None) -> None:
        """Tokens joined the text. `features_MF[i]` is the target's at the token before `tokens[i]`, taps low to high;
        None where no proposer wants any."""
        ...

    def seconds(self) -> float:
        """What asking takes, as far as is known; 0 when it is not worth counting."""
        ...

    def propose(self, ask: Ask) -> Candidates:
        """Candidates for what follows the text, each with its chance and bucket."""
        ...
