"""From 'which drafts would be right where' to cycles, as decoding sees them. Pure.

A mean over positions overstates what decoding accepts: a cycle starts right after a token that the drafter
got wrong, so cycles see harder positions than the average. Here the text is walked as decoding would:
start where a cycle starts, accept the run of right drafts, jump past the bonus token.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Cycles:
    """Counts of walked cycles with up to `steps` drafts each."""

    steps: int
    cycles: int = 0
    committed: int = 0
    reached: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reached = self.reached or [0] * self.steps
        self.accepted = self.accepted or [0] * self.steps

    @property
    def accept_length(self) -> float | None:
        """Committed tokens to a cycle, bonus included; tokens past the text's end are not counted."""
        return self.committed / self.cycles if self.cycles else None

    @property
    def position_acceptances(self) -> list[float | None]:
        """a_i: of the cycles whose first i drafts were accepted, with one more to judge, the share that took it."""
        return [hit / seen if seen else None for hit, seen in zip(self.accepted, self.reached, strict=True)]


def walk(right_JQ: Tensor, tally: Cycles) -> None:
    """Walk one text and add its cycles to `tally`.

    right_JQ[j, q] tells whether draft j of a chain that starts at row q is the text's own token; rows are
    consecutive, and the text holds one token more after row q for each later row, so a chain at row q has
    len - q tokens left to commit:

        row        0    1    2    3        (Q = 4 tokens to commit)
        draft 0    ok   ok   -    ok
        draft 1    ok   -    ok   .
        cycle 1 at row 0: drafts 0, 1 accepted, bonus: 3 tokens, next at row 3
        cycle 2 at row 3: draft 0 accepted, the text ends: 1 token
    """
    right = right_JQ.T.tolist()
    row, Q = 0, len(right)
    while row < Q:
        run = 0
        left = Q - row
        while run < min(tally.steps, left):
            tally.reached[run] += 1
            if not right[row][run]:
                break
            tally.accepted[run] += 1
            run += 1
        tally.cycles += 1
        tally.committed += min(run + 1, left)
        row += run + 1
