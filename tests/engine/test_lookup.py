"""The index finds what a search of the whole text finds, and proposes what stood behind it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from draftwing.engine.lookup import LONGEST, OCCURRENCES, SHORTEST, Lookup
from draftwing.engine.tree import ROOT

A, B, C, X, Y = range(5)


def _surely(name: str, bucket: int, prior: float) -> float:
    return prior


def matches_reference(text: list[int]) -> list[tuple[int, int]]:
    """By looking at every place for every length."""
    found: dict[int, int] = {}
    for length in range(LONGEST, SHORTEST - 1, -1):
        places = [end for end in range(length, len(text)) if text[end - length : end] == text[-length:]]
        for place in reversed(places[-OCCURRENCES:]):
            found.setdefault(place, length)
    return list(found.items())


@given(st.lists(st.integers(0, 2), max_size=60), st.integers(0, 60))
def test_matches_are_those_of_a_search(text: list[int], cut: int) -> None:
    lookup = Lookup()
    assert lookup.matches() == []
    lookup.extend(text[:cut])
    lookup.extend(text[cut:])
    assert lookup.matches() == matches_reference(text)


def test_the_drawing() -> None:
    lookup = Lookup()
    lookup.extend([A, B, C, X, A, B, C, Y, A, B, C])
    assert lookup.matches() == [(7, 3), (3, 3)]
    found = lookup.propose(5, _surely)
    assert (found.tokens, found.parents) == ([Y, A, B, C, X], [ROOT, 0, 1, 2, ROOT])
    assert found.buckets == [3, 4, 5, 6, 3]
    assert found.chances == [0.6, 0.7, 0.78, 0.84, 0.4], "what parts from the first has what that leaves"
    assert lookup.propose(2, _surely).tokens == [Y, A]
    assert lookup.propose(0, _surely).tokens == []


def test_a_loop_proposes_its_own_end_over_and_over() -> None:
    lookup = Lookup()
    lookup.extend([A, B, C] * 5)
    assert lookup.propose(3, _surely).tokens == [A, B, C]


@given(st.lists(st.integers(0, 2), max_size=60), st.integers(0, 12))
def test_candidates_continue_the_text_as_it_went_on_before(text: list[int], budget: int) -> None:
    lookup = Lookup()
    lookup.extend(text)
    found = lookup.propose(budget, _surely)
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
    lookup = Lookup()
    lookup.extend([A] * 5000)
    assert sum(len(places) for places in lookup._places.values()) <= (LONGEST - SHORTEST + 1) * (OCCURRENCES + 1)
