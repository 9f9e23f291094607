"""A cycle's tree: the candidates of all proposers merged, what of it is verified, and the path that is accepted. Pure.

The root is the current token, which the target has yet to be fed; every other node proposes what follows its parent.
Candidates that share a prefix share its nodes:

    lookup    the -> sea -> is           rows      0 cur    visible   1 . . . . .    positions  0
    drafter   the -> sea -> was                    1 the              1 1 . . . .               1
              a                                    2 a                1 . 1 . . .               1
                                                   3 sea              1 1 . 1 . .               2
    the target chose: the, sea, was, dry           4 is               1 1 . 1 1 .               3
    accepted rows 0 1 3 5, bonus: dry              5 was              1 1 . 1 . 1               3

A chain is the tree without branches, and plain decoding the tree of one node. Rows stand in the order of their depth,
so parents stand before their children and an accepted path rises.

Shapes: M nodes, the root included.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

ROOT = -1


@dataclass(frozen=True)
class Candidates:
    """What one proposer proposes, parents before children; a parent of ROOT is the current token.

    `chances[i]` estimates that node i is the target's choice, given that its parent was; `buckets[i]` is what that
    estimate is counted under (`calibration`).
    """

    proposer: str
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    buckets: list[Hashable] = field(default_factory=list)

    def add(self, token: int, parent: int, chance: float, bucket: Hashable = None) -> int:
        """Append a node; returns its number."""
        if not ROOT <= parent < len(self.tokens):
            raise ValueError(f"node {len(self.tokens)} can not have parent {parent}")
        if not 0 <= chance <= 1:
            raise ValueError(f"{chance} is no probability")
        self.tokens.append(token)
        self.parents.append(parent)
        self.chances.append(chance)
        self.buckets.append(bucket)
        return len(self.tokens) - 1


class Node(NamedTuple):
    """A node: who proposed it (with the bucket of each), and `reach`, the estimate that the target comes to it."""

    token: int
    parent: int
    depth: int
    reach: float
    proposers: tuple[tuple[str, Hashable], ...] = ()


@dataclass(frozen=True)
class Tree:
    """Nodes by depth; node 0 is the root."""

    nodes: tuple[Node, ...]

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def tokens(self) -> list[int]:
        """Token ids [M]."""
        return [node.token for node in self.nodes]

    @property
    def is_chain(self) -> bool:
        """True without branches: the causal mask and positions 0..M-1 fit, and the backend need not be told."""
        return all(node.parent == row - 1 for row, node in enumerate(self.nodes))

    @property
    def expected(self) -> float:
        """Expected tokens of the cycle: the bonus token and every node that is accepted."""
        return sum(node.reach for node in self.nodes)

    def positions(self) -> Tensor:
        """Positions [M], counted from the root."""
        return torch.tensor([node.depth for node in self.nodes])

    def visible(self) -> Tensor:
        """visible[i, j]: node i sees node j [M, M], itself and its ancestors."""
        seen = np.eye(len(self), dtype=bool)
        for row, node in enumerate(self.nodes[1:], 1):
            seen[row] |= seen[node.parent]
        return torch.from_numpy(seen)

    def accepted(self, chosen: list[int]) -> list[int]:
        """Rows of the path that the target takes, the root first; `chosen[i]` is its token after row i.

        As long as a child equals the choice, the choice is followed; the last row's choice is the bonus token.
        """
        if len(chosen) != len(self):
            raise ValueError(f"{len(chosen)} choices for {len(self)} nodes")
        children = {(node.parent, node.token): row for row, node in enumerate(self.nodes) if row}
        path = [0]
        while (child := children.get((path[-1], chosen[path[-1]]))) is not None:
            path.append(child)
        return path


class Trie:
    """All candidates so far, merged below the current token; `cut` and `chain` make a tree of some of them.

    Where proposers agree on a node, the larger chance counts. Chances of siblings that sum to more than one, as those
    of different proposers can, are scaled to one: only one child can be the target's choice.
    """

    def __init__(self, current: int) -> None:
        self._tokens, self._parents, self._depths, self._chances = [current], [ROOT], [0], [1.0]
        self._proposers: list[dict[str, Hashable]] = [{}]
        self._children: list[dict[int, int]] = [{}]
        self.reach = [1.0]
        """The estimate for each node that the target comes to it."""

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, source: Candidates) -> Trie:
        """Take in what one proposer proposes. Returns itself."""
        placed: list[int] = []
        children, chances = self._children, self._chances
        for token, parent, chance, bucket in zip(
            source.tokens, source.parents, source.chances, source.buckets, strict=True
        ):
            above = 0 if parent == ROOT else placed[parent]
            row = children[above].get(token)
            if row is None:
                row = children[above][token] = len(self._tokens)
                self._tokens.append(token)
                self._parents.append(above)
                self._depths.append(self._depths[above] + 1)
                chances.append(chance)
                self._proposers.append({source.proposer: bucket})
                children.append({})
            else:
                chances[row] = max(chances[row], chance)
                self._proposers[row].setdefault(source.proposer, bucket)
            placed.append(row)
        self.reach = reach = [1.0] * len(chances)
        for row, below in enumerate(children):
            whole = max(1.0, sum([chances[child] for child in below.values()]))
            for child in below.values():
                reach[child] = reach[row] * chances[child] / whole
        return self

    def likeliest(self) -> list[int]:
        """Rows from the likeliest on. No node is likelier than its parent, so any first part of them is a tree."""
        return sorted(range(len(self)), key=lambda row: (-self.reach[row], row))

    def cut(self, size: int) -> Tree:
        """The `size` nodes that the target is likeliest to come to, the root among them; all when there are fewer."""
        if size < 1:
            raise ValueError("a tree has its root")
        return self._tree(self.likeliest()[:size])

    def chain(self, depth: int) -> Tree:
        """The path that follows the likeliest child of each node, at most `depth` nodes below the root."""
        rows = [0]
        while len(rows) <= depth and (below := self._children[rows[-1]]):
            rows.append(max(below.values(), key=lambda row: (self.reach[row], -row)))
        return self._tree(rows)

    def _tree(self, kept: list[int]) -> Tree:
        """The kept rows by depth, parents numbered anew."""
        rows = sorted(kept, key=lambda row: (self._depths[row], row))
        place = {row: number for number, row in enumerate(rows)}
        return Tree(
            tuple(
                [
                    Node(
                        self._tokens[row],
                        place.get(self._parents[row], ROOT),
                        self._depths[row],
                        self.reach[row],
                        tuple(self._proposers[row].items()),
                    )
                    for row in rows
                ]
            )
        )
