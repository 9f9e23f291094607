"""Lookup: what followed the last few tokens when they stood in the text before. Pure.

The index knows, for every run of SHORTEST to LONGEST tokens, the places behind its latest occurrences:

    text      a  b  c  x  a  b  c  y  a  b  c
    place     0  1  2  3  4  5  6  7  8  9  10
    (a b c)   3, 7     the text behind them, x a b ... and y a b ..., is proposed, the latest first

A token costs one entry for each length and each entry holds OCCURRENCES places at most, so the index is bounded by the
text. (Prompt lookup decoding; transformers' `prompt_lookup_num_tokens` and vLLM's `ngram` take one continuation.)
"""

from __future__ import annotations

from collections.abc import Callable

from draftwing.engine.tree import ROOT, Candidates

SHORTEST, LONGEST = 2, 8
OCCURRENCES = 4
# Shares of right first drafts behind a match of so many tokens, as a prior: from 120 answers of the default target.
PRIORS = {2: 0.5, 3: 0.6, 4: 0.7, 5: 0.78, 6: 0.84, 7: 0.9, 8: 0.95}


class Lookup:
    """The index of one sequence."""

    name = "lookup"

    def __init__(self) -> None:
        self._text: list[int] = []
        self._places: dict[tuple[int, ...], list[int]] = {}

    def extend(self, tokens: list[int]) -> None:
        """Take in tokens of the prompt or of the answer."""
        for token in tokens:
            self._text.append(token)
            here = len(self._text)
            for length in range(SHORTEST, min(LONGEST, here) + 1):
                places = self._places.setdefault(tuple(self._text[-length:]), [])
                places.append(here)
                # The newest place is the text's own end, which nothing follows yet.
                if len(places) > OCCURRENCES + 1:
                    del places[0]

    def matches(self) -> list[tuple[int, int]]:
        """(place behind an earlier occurrence, tokens that match), the longest and latest first, each place once."""
        found: dict[int, int] = {}
        for length in range(min(LONGEST, len(self._text)), SHORTEST - 1, -1):
            for place in reversed(self._places[tuple(self._text[-length:])][:-1]):
                found.setdefault(place, length)
        return list(found.items())

    def propose(self, budget: int, chance: Callable[[str, int, float], float]) -> Candidates:
        """Continuations of all matches, up to `budget` nodes.

        A node `d` tokens behind a match of `m` stands behind a match of m + d once it is reached, and is believed
        as one: `chance(name, bucket, prior)` says how much. Of continuations that part, each has its share.
        """
        out = Candidates(self.name)
        children: dict[tuple[int, int], int] = {}
        spent: dict[int, float] = {}
        for place, matched in self.matches():
            parent = ROOT
            for ahead, token in enumerate(self._text[place : place + budget]):
                node = children.get((parent, token))
                if node is None:
                    if len(out.tokens) == budget:
                        return out
                    bucket = min(matched + ahead, LONGEST)
                    left = max(0.0, 1 - spent.get(parent, 0.0))
                    believed = min(chance(self.name, bucket, PRIORS[bucket]), left)
                    spent[parent] = spent.get(parent, 0.0) + believed
                    node = children[parent, token] = out.add(token, parent, believed, bucket)
                parent = node
        return out
