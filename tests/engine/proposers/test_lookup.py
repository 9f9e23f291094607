"""The index finds what a search of the whole text finds, and proposes what stood behind it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from draftwing.engine.proposers.base import Ask
from draftwing.engine.proposers.lookup import FURTHEST, LONGEST, OCCURRENCES, SHORTEST, Earlier, Index, Lookup
from draftwing.engine.tree import ROOT, Candidates

A, B, C, X, Y = range(5)


def ask(nodes: int, depth: int = 64, width: int = 8) -> Ask:
    return Ask(nodes, depth, width, lambda name, bucket, prior: prior)


def candidates(
    text: list[int], nodes: int, depth: int = 64, width: int = 8, earlier: Earlier | None = None
) -> Candidates:
    lookup = Lookup(earlier)
    lookup.extend(text)
    return lookup.propose(ask(nodes, depth, width))


def matches_reference(text: list[int]) -> list[tuple[int, int]]:
    """By looking at every place for every length."""
    found: dict[int, int] = {}
    for length in range(LONGEST, SHORTEST - 1, -1):
        places = [end for end in range(length, len(text)) if text[end - length : end] == text[-length:]]
        for place in reversed(places[-OCCURRENCES:]):
            found.setdefault(place, length)

    def whole(place: int) -> int:
        return next(n for n in range(min(FURTHEST, place), 0, -1) if text[place - n : place] == text[-n:])

    longer = [(place, whole(place) if length == LONGEST else length) for place, length in found.items()]
    return sorted(longer, key=lambda match: -match[1])


@given(st.lists(st.integers(0, 2), max_size=60), st.integers(0, 60))
def test_matches_are_those_of_a_search(text: list[int], cut: int) -> None:
    index = Index()
    assert index.matches([]) == []
    index.extend(text[:cut])
    index.extend(text[cut:])
    assert index.matches(text) == matches_reference(text)


def test_the_drawing() -> None:
    text = [A, B, C, X, A, B, C, Y, A, B, C]
    index = Index()
    index.extend(text)
    assert index.matches(text) == [(7, 3), (3, 3)]
    found = candidates(text, 5)
    assert (found.tokens, found.parents) == ([Y, A, B, C, X], [ROOT, 0, 1, 2, ROOT])
    assert found.buckets == [3, 4, 5, 6, 3]
    assert found.chances == [0.6, 0.7, 0.78, 0.84, 0.4], "what parts from the first has what that leaves"
    assert candidates(text, 2).tokens == [Y, A]
    assert candidates(text, 0).tokens == []
    assert candidates(text, 9, depth=2).tokens == [Y, A, X, A]
    assert candidates(text, 9, depth=2, width=1).tokens == [Y, A]


def test_a_loop_proposes_its_own_end_over_and_over() -> None:
    assert candidates([A, B, C] * 5, 3).tokens == [A, B, C]


def test_the_further_a_match_goes_back_the_surer_it_is() -> None:
    once = list(range(40))
    for matched, bucket in ((2, 2), (7, 7), (8, 8), (11, 8), (12, 12), (23, 16), (31, 24), (40, 32)):
        found = candidates([*once, 99, 98, *once[-matched:]], 1)
        assert (found.tokens, found.buckets) == ([99], [bucket])


def test_earlier_texts_are_looked_up_when_they_are_given_and_never_joined() -> None:
    earlier = Earlier(100)
    for text in ([A, B, C, X], [Y, A, B]):
        lookup = Lookup(earlier)
        lookup.begin(text[0])
        lookup.extend(text[1:])
        lookup.begin(0)
    assert candidates([B, C], 5, earlier=earlier).tokens == [X], "nothing follows over a border"
    assert candidates([X, Y], 5, earlier=earlier).tokens == []
    assert candidates([B, C], 5).tokens == [], "by default a text knows itself only"
    both = candidates([A, B, C, C, B, C], 5, depth=1, earlier=earlier)
    assert both.tokens == [C, X], "of equal matches those of the text itself come first"


def test_earlier_texts_are_bounded_and_the_oldest_go_first() -> None:
    earlier = Earlier(50)
    for number in range(30):
        earlier.add(list(range(10 * number, 10 * number + 10)))
        assert len(earlier.index.text) <= 50
    assert candidates([290, 291], 1, earlier=earlier).tokens == [292]
    assert candidates([0, 1], 1, earlier=earlier).tokens == []
    earlier.add(list(range(1000)))
    assert len(earlier.index.text) <= 50


@given(st.lists(st.integers(0, 2), max_size=60), st.integers(0, 12))
def test_candidates_continue_the_text_as_it_went_on_before(text: list[int], budget: int) -> None:
    found = candidates(text, budget)
    assert len(found.tokens) <= budget
    went_on = [tuple(text[place:]) for place, _ in matches_reference(text)]
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(found.tokens, found.parents, strict=True):
        paths.append((*(paths[parent] if parent != ROOT else ()), token))
        assert any(rest[: len(paths[-1])] == paths[-1] for rest in went_on)
    assert len(set(paths)) == len(paths)
    for parent in {ROOT, *range(len(paths))}:
        assert sum(c for c, above in zip(found.chances, found.parents, strict=True) if above == parent) <= 1 + 1e-9


def test_memory_is_bounded_by_the_text() -> None:
    index = Index()
    index.extend([A] * 5000)
    assert sum(len(places) for places in index._places.values()) <= (LONGEST - SHORTEST + 1) * (OCCURRENCES + 1)
