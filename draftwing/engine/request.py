"""What is asked of the engine, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from draftwing.core.errors import UserError
from draftwing.engine.stops import Finish
from draftwing.ops.sampling import Sampling


@dataclass(frozen=True)
class Request:
    """One prompt and how to answer it."""

    prompt: tuple[int, ...]
    max_new_tokens: int = 256
    sampling: Sampling = Sampling()
    stop_strings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.prompt:
            raise UserError("The prompt is empty.", "Give at least one token.")
        if self.max_new_tokens < 1:
            raise UserError(f"max-new-tokens is {self.max_new_tokens}.", "It must be 1 or more.")
        if "" in self.stop_strings:
            raise UserError("A stop string is empty.", "Give a text of at least one character.")


@dataclass(frozen=True)
class Event:
    """One committed token, the text it completes (empty inside a character), and whether the drafter had it."""

    token: int
    text: str
    drafted: bool


@dataclass
class Counters:
    """Raw counts of speculation. Tokens after a stop are in none of them, nor is the token that prefill yields."""

    num_steps: int
    cycles: int = 0
    committed: int = 0
    proposed: int = 0
    reached: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    plain_steps: int = 0

    def __post_init__(self) -> None:
        self.reached = self.reached or [0] * self.num_steps
        self.accepted = self.accepted or [0] * self.num_steps

    @property
    def accept_length(self) -> float | None:
        """Committed tokens to a cycle, bonus included; None before the first cycle."""
        return self.committed / self.cycles if self.cycles else None

    @property
    def accept_rate(self) -> float | None:
        """Accepted drafts of proposed ones, in [0, 1]; None before the first cycle."""
        return sum(self.accepted) / self.proposed if self.proposed else None

    @property
    def position_acceptances(self) -> list[float | None]:
        """a_i: of the cycles whose first i drafts were accepted, the share that also took draft i + 1."""
        return [hit / seen if seen else None for hit, seen in zip(self.accepted, self.reached, strict=True)]

    def add_cycle(self, proposed: int, matched: int, committed: int) -> None:
        """Count a cycle that matched `matched` drafts and, a stop considered, committed `committed` tokens."""
        self.cycles += 1
        self.committed += committed
        self.proposed += proposed
        for position in range(min(committed, proposed)):
            self.reached[position] += 1
            self.accepted[position] += position < matched

    def add(self, other: Counters) -> None:
        """Add another answer's counts."""
        for name in ("cycles", "committed", "proposed", "plain_steps"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.reached = [a + b for a, b in zip(self.reached, other.reached, strict=True)]
        self.accepted = [a + b for a, b in zip(self.accepted, other.accepted, strict=True)]


@dataclass
class Answer:
    """What came of a request. Times are in seconds; `decode_s` covers everything after the first token."""

    tokens: list[int]
    text: str
    finish: Finish
    counters: Counters
    prefill_s: float
    decode_s: float
    draft_s: float
    target_s: float
    gaps: list[float]
    notes: list[str]

    @property
    def decode_rate(self) -> float | None:
        """Tokens a second after the first one; None when there are none."""
        return (len(self.tokens) - 1) / self.decode_s if len(self.tokens) > 1 else None
