"""Lookup: what followed the last few tokens when they stood in the text before. No tensor is touched.

The index knows, for every run of SHORTEST to LONGEST tokens, the places behind its latest occurrences:

    text      a  b  c  x  a  b  c  y  a  b  c
    place     0  1  2  3  4  5  6  7  8  9  10
    (a b c)   3, 7     the text behind them, x a b ... and y a b ..., is proposed, the latest first

A token costs one entry for each length and each entry holds OCCURRENCES + 1 places at most, so the index is bounded by
the text. (Prompt lookup decoding; transformers' `prompt_lookup_num_tokens` and vLLM's `ngram` take one continuation.)
"""

from __future__ import annotations

from bisect import bisect_right

from torch import Tensor

from draftwing.engine.proposers.base import Ask
from draftwing.engine.tree import ROOT, Candidates

SHORTEST, LONGEST = 2, 8
# A match is followed back so far; the further, the surer.
FURTHEST = 32
OCCURRENCES = 4
# Shares of right first drafts behind a match of so many tokens or more, as a prior: from 120 answers of the default
# target.
PRIORS = {2: 0.5, 3: 0.6, 4: 0.7, 5: 0.78, 6: 0.84, 7: 0.9, 8: 0.95, 12: 0.96, 16: 0.97, 24: 0.98, 32: 0.985}
BUCKETS = sorted(PRIORS)
# Stands between texts in an index of several; no token is negative.
BORDER = -1


class Index:
    """Where runs of tokens occurred."""

    def __init__(self) -> None:
        self.text: list[int] = []
        self._places: dict[tuple[int, ...], list[int]] = {}

    def extend(self, tokens: list[int]) -> None:
        """Take in the next tokens."""
        for token in tokens:
            self.text.append(token)
            here = len(self.text)
            for length in range(SHORTEST, min(LONGEST, here) + 1):
                places = self._places.setdefault(tuple(self.text[-length:]), [])
                places.append(here)
                # The newest place may be the text's own end, which nothing follows yet.
                if len(places) > OCCURRENCES + 1:
                    del places[0]

    def matches(self, tail: list[int]) -> list[tuple[int, int]]:
        """(place behind an occurrence of the tail's last tokens, how many match), each place once.

        The longest first, of these the latest. A place that nothing follows is left out.
        """
        found: dict[int, int] = {}
        for length in range(min(LONGEST, len(tail)), SHORTEST - 1, -1):
            for place in reversed(self._places.get(tuple(tail[-length:]), ())):
                if place < len(self.text):
                    found.setdefault(place, length)
        longer = [(place, self._follow(tail, place, length)) for place, length in found.items()]
        return sorted(longer, key=lambda match: -match[1])

    def _follow(self, tail: list[int], place: int, length: int) -> int:
        """How many tokens really match, when all that the index compares do."""
        if length < LONGEST:
            return length
        most = min(FURTHEST, len(tail), place)
        while length < most and self.text[place - 1 - length] == tail[-1 - length]:
            length += 1
        return length


class Earlier:
    """Texts of earlier requests of this process, at most `tokens` tokens.

    Of one text the last half of that is kept; when there is no more room, the older half goes.
    """

    def __init__(self, tokens: int) -> None:
        if tokens < 4:
            raise ValueError(f"{tokens} tokens hold no text")
        self._most, self.index = tokens, Index()

    def add(self, text: list[int]) -> None:
        """Take in a whole text."""
        half = self._most // 2
        text = [BORDER, *text[-(half - 1) :]]
        if len(self.index.text) + len(text) > self._most:
            kept = self.index.text[-half:]
            self.index = Index()
            self.index.extend(kept)
        self.index.extend(text)


class Lookup:
    """Continuations of what the text's end matches, in the text itself and, where given, in earlier ones."""

    name = "lookup"
    taps: tuple[int, ...] = ()
    note: str | None = None

    def __init__(self, earlier: Earlier | None = None) -> None:
        self._own, self._earlier = Index(), earlier

    def begin(self, token: int) -> None:
        """See `base.Proposer`. The text so far joins the earlier ones."""
        if self._earlier and self._own.text:
            self._earlier.add(self._own.text)
        self._own = Index()
        self._own.extend([token])

    def extend(self, tokens: list[int], features_MF: Tensor | None = None) -> None:
        """See `base.Proposer`."""
        self._own.extend(tokens)

    def seconds(self) -> float:
        """See `base.Proposer`."""
        return 0.0

    def propose(self, ask: Ask) -> Candidates:
        """Continuations of all matches.

        A node `d` tokens behind a match of `m` stands behind a match of m + d once it is reached, and is believed
        as one. Of continuations that part, each has its share.
        """
        out = Candidates(self.name)
        children: dict[int, dict[int, int]] = {}
        for text, place, matched in self._matches():
            parent = ROOT
            for ahead, token in enumerate(text[place : place + ask.depth]):
                below = children.setdefault(parent, {})
                node = below.get(token)
                if node is None:
                    if len(out.tokens) == ask.nodes or len(below) == ask.width or token == BORDER:
                        break
                    bucket = BUCKETS[bisect_right(BUCKETS, matched + ahead) - 1]
                    left = max(0.0, 1 - sum([out.chances[child] for child in below.values()]))
                    believed = min(ask.chance(self.name, bucket, PRIORS[bucket]), left)
                    node = below[token] = out.add(token, parent, believed, bucket)
                parent = node
        return out

    def _matches(self) -> list[tuple[list[int], int, int]]:
        """(text, place in it, tokens that match), the longest first, of equals those of the text itself first."""
        tail = self._own.text[-FURTHEST:]
        found = [(self._own.text, *match) for match in self._own.matches(tail)]
        if self._earlier:
            found += [(self._earlier.index.text, *match) for match in self._earlier.index.matches(tail)]
            found.sort(key=lambda match: -match[2])
        return found
