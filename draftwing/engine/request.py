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
    """One committed token, the text it completes (empty inside a character), and who proposed it: several names are
    joined by +, and a token that the target added itself has none."""

    token: int
    text: str
    proposer: str = ""


@dataclass
class Counters:
    """Raw counts of speculation. Tokens after a stop are in none of them, nor is the token that prefill yields.

    `nodes` counts verified tokens, the current one included; `reached` and `accepted` are by depth, `by` counts
    accepted tokens by proposer, `asked` the cycles for which a proposer was asked and had candidates. `plain_steps`
    are steps of plain decoding; a cycle whose tree has one node is a cycle.
    """

    cycles: int = 0
    committed: int = 0
    nodes: int = 0
    reached: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    by: dict[str, int] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    plain_steps: int = 0

    @property
    def proposed(self) -> int:
        """Verified drafts."""
        return self.nodes - self.cycles

    @property
    def accept_length(self) -> float | None:
        """Committed tokens to a cycle, bonus included; None before the first cycle."""
        return self.committed / self.cycles if self.cycles else None

    @property
    def accept_rate(self) -> float | None:
        """Accepted drafts of proposed ones, in [0, 1]; None before the first."""
        return sum(self.accepted) / self.proposed if self.proposed else None

    @property
    def tree_size(self) -> float | None:
        """Mean nodes of a tree, the current token included."""
        return self.nodes / self.cycles if self.cycles else None

    @property
    def position_acceptances(self) -> list[float | None]:
        """a_i: of the cycles whose first i drafts were accepted and that had one more to judge, the share that took
        draft i + 1."""
        return [hit / seen if seen else None for hit, seen in zip(self.accepted, self.reached, strict=True)]

    def add_cycle(self, nodes: int, matched: int, judged: int, committed: int) -> None:
        """Count a cycle that verified `nodes` tokens, matched `matched` drafts, judged `judged` places (one more than
        matched where the accepted path had children) and, a stop considered, committed `committed` tokens."""
        self.cycles += 1
        self.committed += committed
        self.nodes += nodes
        self._widen(judged)
        for position in range(min(committed, judged)):
            self.reached[position] += 1
            self.accepted[position] += position < matched

    def add(self, other: Counters) -> None:
        """Add another answer's counts."""
        for name in ("cycles", "committed", "nodes", "plain_steps"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self._widen(len(other.reached))
        for position, (seen, hit) in enumerate(zip(other.reached, other.accepted, strict=True)):
            self.reached[position] += seen
            self.accepted[position] += hit
        for mine, theirs in ((self.by, other.by), (self.asked, other.asked)):
            for name, count in theirs.items():
                mine[name] = mine.get(name, 0) + count

    def _widen(self, positions: int) -> None:
        for counts in (self.reached, self.accepted):
            counts.extend([0] * (positions - len(counts)))


@dataclass
class Answer:
    """What came of a request. Times are in seconds; `decode_s` covers everything after the first token, `phases` its
    parts: target, tree (merging and sizing), choose (from logits to tokens), and each proposer by name."""

    tokens: list[int]
    text: str
    finish: Finish
    counters: Counters
    prefill_s: float
    decode_s: float
    phases: dict[str, float]
    gaps: list[float]
    notes: list[str]

    @property
    def decode_rate(self) -> float | None:
        """Tokens a second after the first one; None when there are none."""
        return (len(self.tokens) - 1) / self.decode_s if len(self.tokens) > 1 else None
