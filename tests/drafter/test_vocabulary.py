"""The reduced vocabulary: which tokens it holds, how it is stored, what is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwing.core.errors import UserError
from draftwing.drafter.vocabulary import VocabularyMap, from_offsets, most_frequent

COUNTS = torch.tensor([0, 5, 2, 0, 9, 2, 0, 1])

subsets = st.sets(st.integers(0, 29), min_size=1).map(sorted)


@pytest.mark.parametrize(
    ("size", "ids"),
    [
        (1, [4]),
        (2, [1, 4]),
        (3, [1, 2, 4]),  # tokens 2 and 5 tie: the lower id
        (5, [1, 2, 4, 5, 7]),
        (7, [0, 1, 2, 3, 4, 5, 7]),  # only five tokens occur: zeros pad from the lowest id up
        (8, list(range(8))),
    ],
)
def test_the_most_frequent_tokens_are_chosen_and_ties_go_to_the_lower_id(size: int, ids: list[int]) -> None:
    assert most_frequent(COUNTS, size).target_ids_D.tolist() == ids


def test_ties_go_to_the_lower_id_among_thousands() -> None:
    counts = torch.randint(4, (5000,), generator=torch.Generator().manual_seed(0))
    wanted = sorted(sorted(range(5000), key=lambda token: (-int(counts[token]), token))[:2000])
    assert most_frequent(counts, 2000).target_ids_D.tolist() == wanted


@pytest.mark.parametrize("size", [0, -1, 9])
def test_a_size_that_the_target_can_not_fill_is_refused(size: int) -> None:
    with pytest.raises(UserError, match="Choose 1 to 8"):
        most_frequent(COUNTS, size)


def test_another_size_on_the_same_data_is_another_map() -> None:
    """T9: nothing remembers the map of the run before."""
    wide, narrow = most_frequent(COUNTS, 4), most_frequent(COUNTS, 2)
    assert (len(wide.target_ids_D), len(narrow.target_ids_D)) == (4, 2)
    assert wide.digest != narrow.digest
    assert most_frequent(COUNTS, 4).digest == wide.digest


def test_offsets_and_membership_are_as_checkpoints_store_them() -> None:
    vocabulary = VocabularyMap(torch.tensor([0, 3, 4, 7]), 9)
    assert vocabulary.offsets_D.tolist() == [0, 2, 2, 4]
    assert vocabulary.member_V.tolist() == [True, False, False, True, True, False, False, True, False]
    assert vocabulary.draft_ids_V.tolist() == [0, -1, -1, 1, 2, -1, -1, 3, -1]


@given(ids=subsets)
def test_offsets_round_trip(ids: list[int]) -> None:
    """T8: target id = draft id + d2t[draft id], and reading what was written gives the same map."""
    vocabulary = VocabularyMap(torch.tensor(ids), 30)
    again = from_offsets(vocabulary.offsets_D.int(), 30)
    assert [draft + offset for draft, offset in enumerate(vocabulary.offsets_D.tolist())] == ids
    assert again.target_ids_D.tolist() == ids
    assert again.digest == vocabulary.digest
    assert vocabulary.draft_ids_V[vocabulary.target_ids_D].tolist() == list(range(len(ids)))
    assert vocabulary.member_V.nonzero()[:, 0].tolist() == ids


@pytest.mark.parametrize(
    "ids", [[], [3, 3], [4, 2], [-1, 2], [2, 9]], ids=["empty", "twice", "falling", "negative", "past the target"]
)
def test_a_map_that_is_not_one_is_refused(ids: list[int]) -> None:
    with pytest.raises(UserError, match="distinct target tokens in rising order"):
        VocabularyMap(torch.tensor(ids, dtype=torch.long), 9)


@pytest.mark.parametrize(
    "offsets", [[0, 2, 0], [0, 2, 2, 6], [5, 6, 7]], ids=["two drafts for one token", "past the end", "absolute ids"]
)
def test_damaged_offsets_are_refused(offsets: list[int]) -> None:
    with pytest.raises(UserError, match="d2t is damaged"):
        from_offsets(torch.tensor(offsets), 9)
