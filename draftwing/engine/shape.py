"""How large a cycle's tree is: sized by cost, or given. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from draftwing.core.errors import UserError

MOST_NODES, MOST_WIDTH, MOST_STEPS = 64, 8, 16
USUAL_STEPS = 5


@dataclass(frozen=True)
class Shape:
    """`auto`, or a tree of at most `nodes` (the current token among them), `width` children and `steps` levels.

    SGLang calls these three speculative_num_draft_tokens, speculative_eagle_topk and speculative_num_steps. With
    `auto` they are the bounds of what is chosen cycle by cycle.
    """

    nodes: int
    width: int
    steps: int
    auto: bool = False

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("nodes", self.nodes, 2, MOST_NODES),
            ("width", self.width, 1, MOST_WIDTH),
            ("steps", self.steps, 1, MOST_NODES - 1 if self.auto else MOST_STEPS),
        ):
            if not least <= value <= most:
                raise UserError(f"A tree of {self} has {name} {value}.", f"Choose {least} to {most}.")
        if not self.auto and self.nodes > self.largest:
            raise UserError(
                f"{self.width} children a node and {self.steps} steps yield {self.largest} nodes at most, "
                f"not {self.nodes}.",
                f"Say --tree {self.largest}:{self.width}:{self.steps}, or raise width or steps.",
            )

    @property
    def largest(self) -> int:
        """Nodes that a drafter yields: `width` children of the current token, then of `width` nodes a step."""
        return 1 + self.width + (self.steps - 1) * self.width**2

    @property
    def chain(self) -> bool:
        """True without branches."""
        return self.width == 1

    def __str__(self) -> str:
        if self.auto:
            return "auto"
        return f"chain:{self.steps}" if self.chain else f"{self.nodes}:{self.width}:{self.steps}"


AUTO = Shape(MOST_NODES, 4, MOST_NODES - 1, auto=True)


def chain(steps: int) -> Shape:
    """`steps` drafts, each after the other."""
    if not 1 <= steps <= MOST_STEPS:
        raise UserError(
            f"A chain of {steps} drafts is not possible.",
            f"Choose 1 to {MOST_STEPS}; to decode without drafts, leave all proposers out.",
        )
    return Shape(steps + 1, 1, steps)


def parse_shape(text: str) -> Shape:
    """`auto`, `chain:STEPS`, `NODES:WIDTH` or `NODES:WIDTH:STEPS`; UserError for anything else."""
    if text == "auto":
        return AUTO
    if found := re.fullmatch(r"chain:(-?\d{1,9})", text):
        return chain(int(found[1]))
    if found := re.fullmatch(r"(-?\d{1,9}):(-?\d{1,9})(?::(-?\d{1,9}))?", text):
        nodes, width = int(found[1]), int(found[2])
        if width == 1:
            return chain(nodes - 1)
        return Shape(nodes, width, int(found[3] or USUAL_STEPS))
    raise UserError(
        f"There is no tree {text!r}.",
        "Say auto (sized by cost), chain:3 (three drafts), or 16:4 (16 nodes, 4 children of a node; 16:4:5 with 5 "
        "steps).",
    )
