"""EAGLE-3 drafting with the drafter's own cache, as a chain or as EAGLE-2's dynamic tree (arXiv 2406.16858, section 4).

Row t of the drafter pairs the target's features at token t with token t + 1 and stands at position t. When it is
asked, the rows of tokens committed since are computed from the target's features (the refeed), over whatever its
drafts had left there; the last of them yields the first drafts. The likeliest `width` of them are fed on, each with
the drafter's own state of its parent; the likeliest of what these yield again, and so on:

    cache index   0 .. t       | t+1  t+2 | t+3  t+4        (overwritten by the next refeed)
    row           from features| the  a   | sea  was
    position                   | t+1      | t+2
    sees          0 .. t       | itself   | its ancestors and itself

The rows of a chain (width 1) see all that stands before them. What was accepted of another proposer's candidates, or
of none, reaches the drafter as features like all else: its cache is right whichever branch the target took, and when
it was not asked for some cycles.

Shapes: M rows, F = A * Ht features, H hidden, N query heads, K key-value heads, D head size, C capacity, Vd draft
vocabulary, W width.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from draftwing.drafter.checkpoint import LoadedDrafter
from draftwing.engine.proposers.base import Ask
from draftwing.engine.tree import ROOT, Candidates
from draftwing.ops.attention import attention
from draftwing.ops.rope import rotation_table
from draftwing.ops.sampling import argmax

REFEED_ROWS = 512
# Asking takes its usual time when no more than this is refed: not after a prompt.
USUAL_REFEED = 32
# Room for the rows of one tree behind the text.
DRAFT_ROWS = 256
# Candidates are alike when their probability falls between the same two of these, at a like depth and rank.
EDGES = (0.01, 0.03, 0.06, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
MIDDLES = (0.004, 0.02, 0.045, 0.08, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.925, 0.97, 0.995)
# How quickly measured times and yields follow, and how far off a single one may seem: a machine pauses now and then.
FOLLOW, FURTHEST = 0.1, 0.5
# The first asks find cold kernels and caches: their time says nothing of later ones.
COLD_ASKS = 3


class EagleProposer:
    """A drafter at work on one sequence."""

    name = "drafter"

    def __init__(self, drafter: LoadedDrafter, embed: Callable[[Tensor], Tensor], capacity: int) -> None:
        self.taps = drafter.taps
        self.note: str | None = None
        self.limit = min(drafter.contract.trained_context if drafter.contract else capacity, capacity)
        self._model, self._embed = drafter.model, embed
        weight, config = drafter.model.fc.weight, drafter.model.config
        self._target_ids_D = drafter.vocabulary.target_ids_D.to(weight.device)
        self._keys_1KCD = torch.zeros(
            1, config.kv_heads, capacity + DRAFT_ROWS, config.head_dim, dtype=weight.dtype, device=weight.device
        )
        self._values_1KCD = torch.zeros_like(self._keys_1KCD)
        cos_PD, sin_PD = rotation_table(config.rope, config.head_dim, capacity + DRAFT_ROWS)
        self._cos_P1D, self._sin_P1D = cos_PD.to(weight)[:, None], sin_PD.to(weight)[:, None]
        # Zeros, then -inf: the mask of any refed row is a window of this (see `_causal`).
        self._window = self._cos_P1D.new_zeros(2 * capacity)
        self._window[capacity:] = float("-inf")
        self._asking_s = self._step_s = 0.0
        self._asked = 0
        self._yield = 0.6
        self.begin(0)

    def begin(self, token: int) -> None:
        """See `base.Proposer`."""
        self.length = 0
        self.note = None
        self._features: list[Tensor] = []
        self._tokens: list[int] = []

    def extend(self, tokens: list[int], features_MF: Tensor | None) -> None:
        """See `base.Proposer`. Features wait here until the drafter is asked; past its context it never is again."""
        assert features_MF is not None
        if self.note:
            return
        self._features.append(features_MF)
        self._tokens += tokens

    def seconds(self) -> float:
        """See `base.Proposer`: a running mean."""
        return self._asking_s

    @torch.inference_mode()
    def propose(self, ask: Ask) -> Candidates:
        """Candidates by the drafter's softmax, expanded step by step as long as another step is worth its time.

        No row stands past the drafter's trained context; nothing is proposed behind it.
        """
        start = time.perf_counter()
        out = Candidates(self.name)
        if self.note:
            return out
        # The last verified token stands one further than the last row.
        depth = min(ask.depth, self.limit - self.length - len(self._tokens) - 1)
        if depth < 1:
            self.note = f"Past {self.limit} tokens, the drafter's trained context, decoding went on without its drafts."
            self._features, self._tokens = [], []
            return out
        usual = len(self._tokens) <= USUAL_REFEED
        state_MH = self._refeed()
        drafts = _Drafts(out, self.length)
        self._spread(drafts, state_MH, ask)
        while len(drafts.levels) < depth and len(out.tokens) < ask.nodes and self._goes_on(drafts, ask):
            begun = time.perf_counter()
            state_MH = self._advance(drafts, state_MH)
            self._spread(drafts, state_MH, ask)
            if self._asked >= COLD_ASKS:
                self._step_s = _follow(self._step_s, time.perf_counter() - begun)
        self._asked += 1
        if usual and self._asked > COLD_ASKS:
            self._asking_s = _follow(self._asking_s, time.perf_counter() - start)
        return out

    def _refeed(self) -> Tensor:
        """Append rows of what was committed since; returns the last row's state [1, H]."""
        features = self._features[0] if len(self._features) == 1 else torch.cat(self._features)
        tokens_M = torch.tensor(self._tokens, device=features.device)
        for first in range(0, len(tokens_M), REFEED_ROWS):
            rows = slice(first, first + REFEED_ROWS)
            states_MH = self._model.fuse(features[rows].to(self._cos_P1D.dtype))
            M, at = len(states_MH), self.length
            turn = self._cos_P1D[at : at + M], self._sin_P1D[at : at + M]
            state_MH = self._run(states_MH, tokens_M[rows], at, turn, self._causal(M, at))
            self.length += M
        self._features, self._tokens = [], []
        return state_MH[-1:]

    def _spread(self, drafts: _Drafts, state_MH: Tensor, ask: Ask) -> None:
        """Propose the best `width` children of every row, and mark the likeliest of all of them to be fed on."""
        out, depth = drafts.out, len(drafts.levels)
        logits_MD = self._model.logits(state_MH)
        # Best first by torch's own order would need a sort of ties; the first of equal ones is argmax's choice.
        if ask.width == 1:
            best_M1 = argmax(logits_MD)[:, None]
            top_M1 = logits_MD.gather(-1, best_M1)
        else:
            top_M1, best_M1 = logits_MD.topk(min(ask.width, logits_MD.shape[-1]), -1)
        believed = (top_M1.float() - logits_MD.float().logsumexp(-1, keepdim=True)).exp().tolist()
        ids = self._target_ids_D[best_M1].tolist()
        made: list[tuple[float, int, int]] = []
        for row, (parent, reach) in enumerate(drafts.rows):
            for rank, (token, softmax) in enumerate(zip(ids[row], believed[row], strict=True)):
                place = bisect_right(EDGES, softmax)
                bucket = (min(depth, 3), min(rank, 2), place)
                chance = ask.chance(self.name, bucket, MIDDLES[place])
                made.append((reach * chance, out.add(token, parent, chance, bucket), row))
        total = sum(reach for _, reach in drafts.rows)
        if total > 0:
            self._yield = _follow(self._yield, sum(reach for reach, _, _ in made) / total)
        made.sort(key=lambda child: (-child[0], child[1]))
        drafts.levels.append(made[: ask.width])

    def _goes_on(self, drafts: _Drafts, ask: Ask) -> bool:
        """True when what another step is expected to add, above the cost of verifying it, is worth its time."""
        if not ask.rate:
            return True
        gain = sum(max(0.0, reach * self._yield - ask.worth) for reach, _, _ in drafts.levels[-1])
        return gain > ask.rate * self._step_s

    def _advance(self, drafts: _Drafts, state_MH: Tensor) -> Tensor:
        """Feed the marked drafts; returns their states."""
        marked, device = drafts.levels[-1], state_MH.device
        nodes, parents = [node for _, node, _ in marked], [row for _, _, row in marked]
        tokens_W = torch.tensor([drafts.out.tokens[node] for node in nodes], device=device)
        before = len(drafts.seen)
        visible = drafts.feed(nodes, parents)
        W, at, position = len(nodes), self.length + before, self.length + len(drafts.levels) - 1
        mask = None
        if not visible.all():
            mask = self._window.new_zeros(W, at + W)
            mask[:, self.length :].masked_fill_(~torch.from_numpy(visible).to(device), float("-inf"))
            mask = mask[None, None]
        turn = self._cos_P1D[position : position + 1], self._sin_P1D[position : position + 1]
        return self._run(state_MH[parents] if W > 1 or len(state_MH) > 1 else state_MH, tokens_W, at, turn, mask)

    def _run(
        self, state_MH: Tensor, tokens_M: Tensor, at: int, turn: tuple[Tensor, Tensor], mask: Tensor | None
    ) -> Tensor:
        """One forward of M rows, kept at cache indices from `at` on; returns the states after the layer."""
        model, M = self._model, len(state_MH)
        cos, sin = turn
        mixed = model.mix(self._embed(tokens_M).to(state_MH.dtype), state_MH)
        keys_MKD, values_MKD = model.keys_values(mixed, cos, sin)
        self._keys_1KCD[0, :, at : at + M] = keys_MKD.transpose(0, 1)
        self._values_1KCD[0, :, at : at + M] = values_MKD.transpose(0, 1)
        queries_1NMD = model.queries(mixed, cos, sin).transpose(0, 1)[None]
        keys, values = self._keys_1KCD[:, :, : at + M], self._values_1KCD[:, :, : at + M]
        mixed_1NMD = attention(queries_1NMD, keys, values, mask)
        return model.finish(state_MH, mixed_1NMD[0].transpose(0, 1).reshape(M, -1))

    def _causal(self, M: int, at: int) -> Tensor | None:
        """Additive causal mask [1, 1, M, at + M]: row i sees entries 0..at + i."""
        if M == 1:
            return None
        first = len(self._window) // 2 - 1 - at
        rows = [self._window[first - row : first - row + at + M] for row in range(M)]
        return torch.stack(rows)[None, None]


class _Drafts:
    """The tree that is being drafted: its candidates, and the rows that were fed for it."""

    def __init__(self, out: Candidates, length: int) -> None:
        self.out, self.length = out, length
        # Of the rows last run: (node, reach).
        self.rows: list[tuple[int, float]] = [(ROOT, 1.0)]
        # Of each depth, the nodes that are fed on: (reach, node, row of the parent among those last run).
        self.levels: list[list[tuple[float, int, int]]] = []
        # Of each fed row, the fed rows that it sees.
        self.seen: list[list[int]] = []
        self._last: list[int] = []

    def feed(self, nodes: list[int], parents: list[int]) -> np.ndarray:
        """Note that these nodes are run now; returns visible [W, rows fed so far] of them."""
        before = len(self.seen)
        for number, parent in enumerate(parents):
            self.seen.append([*(self.seen[self._last[parent]] if self._last else []), before + number])
        self._last = list(range(before, len(self.seen)))
        self.rows = [(node, reach) for reach, node, _ in self.levels[-1]]
        visible = np.zeros((len(nodes), len(self.seen)), dtype=bool)
        for number, seen in enumerate(self.seen[before:]):
            visible[number, seen] = True
        return visible


def _follow(mean: float, value: float) -> float:
    """The running mean, moved towards a value."""
    return value if mean == 0 else mean + FOLLOW * max(-FURTHEST * mean, min(FURTHEST * mean, value - mean))
