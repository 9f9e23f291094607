"""Which token, position and target belong to step j of row t: the drawing in train/align.py, and a slow definition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwing.drafter.vocabulary import VocabularyMap
from draftwing.formats.features import Sample
from draftwing.train.align import chain_rows, counted, repeated, response_runs
from draftwing.train.batch import make_batch
from tests.train.scenes import noise, vocabulary

# The drawing: a prompt of two tokens, a response of four; token ids are 10 + t.
TOKENS = torch.arange(10, 16)
MASK = torch.tensor([0, 0, 1, 1, 1, 1])
EVERYTHING = VocabularyMap(torch.arange(40), 40)
SEEN = torch.tensor([-1, -1, 13, 14, 15, 9])

masks = st.lists(st.integers(0, 1), min_size=2, max_size=14).filter(lambda mask: 0 < sum(mask) < len(mask))


def drawn() -> Sample:
    states = torch.arange(6.0)[:, None, None].expand(6, 4, 2).clone()
    return Sample("drawn", TOKENS, MASK, SEEN, states)


def test_rows_of_the_drawing() -> None:
    """Row 0 does not count: decoding never drafts x2, the token that prefill yields."""
    assert response_runs(MASK) == [range(1, 4)]
    assert chain_rows(MASK) == range(1, 4)


def test_counts_of_the_drawing() -> None:
    rows, member = range(1, 4), EVERYTHING.member_V
    assert counted(MASK, SEEN, member, rows, 0).tolist() == [True, True, True]
    assert counted(MASK, SEEN, member, rows, 1).tolist() == [True, True, False]
    assert counted(MASK, SEEN, member, rows, 4).tolist() == [False, False, False]


def test_row_0_never_counts_before_a_prompt_of_two() -> None:
    assert counted(MASK, SEEN, EVERYTHING.member_V, range(6), 0).tolist() == [False, True, True, True, False, False]


def test_a_row_is_masked_when_the_targets_choice_is_outside_the_draft_vocabulary() -> None:
    """Row t learns p_{t+1} at step 0, p_{t+2} at step 1: token 14 is the choice at t = 3."""
    member = EVERYTHING.member_V.clone()
    member[14] = False
    assert counted(MASK, SEEN, member, range(1, 4), 0).tolist() == [True, False, True]
    assert counted(MASK, SEEN, member, range(1, 4), 1).tolist() == [False, True, False]


def test_a_row_is_masked_when_the_targets_choice_was_not_recorded() -> None:
    """-1 is no token, not even when token 0 is in the draft vocabulary."""
    unknown = torch.tensor([-1, -1, 13, -1, 15, 9])
    assert EVERYTHING.member_V[0]
    assert counted(MASK, unknown, EVERYTHING.member_V, range(1, 4), 0).tolist() == [True, False, True]


def test_the_batch_of_the_drawing() -> None:
    batch = make_batch([drawn()], EVERYTHING, 2)
    assert batch is not None
    assert (batch.spans[0].keys, batch.spans[0].queries, batch.spans[0].first) == (slice(0, 4), slice(0, 3), 1)
    assert batch.position_R.tolist() == [0, 1, 2, 3]
    assert batch.next_token_R.tolist() == [11, 12, 13, 14]
    assert batch.features_RF[:, 0].tolist() == [0, 1, 2, 3]
    assert tuple(batch.features_RF.shape) == (4, 6)
    assert batch.query_Q.tolist() == [1, 2, 3]
    assert batch.token_JQ.tolist() == [[12, 13, 14], [13, 14, 15]]
    assert batch.counts_JQ.tolist() == [[True, True, True], [True, True, False]]
    learned = batch.teacher_states_PH[batch.learns_JQ, 0]
    assert learned[0].tolist() == [2, 3, 4]
    assert learned[1, :2].tolist() == [3, 4]
    # A chain at row 3 has the text's last token as its first draft; its second would lie past the end.
    assert batch.drafts_right_JQ.tolist() == [[13, 14, 15], [14, 15, -1]]


def test_a_text_token_without_a_draft_id_can_not_be_drafted_right() -> None:
    few = VocabularyMap(torch.tensor([3, 13, 15]), 40)
    batch = make_batch([drawn()], few, 2)
    assert batch is not None
    assert batch.drafts_right_JQ.tolist() == [[1, -1, 2], [-1, 2, -1]]


def test_two_responses_leave_the_rows_between_them_out() -> None:
    mask = torch.tensor([0, 1, 1, 1, 0, 0, 1, 1, 0])
    assert response_runs(mask) == [range(2), range(5, 6)]
    assert chain_rows(mask) == range(6)
    everything = counted(mask, torch.zeros(9), EVERYTHING.member_V, range(6), 0)
    assert everything.tolist() == [True, True, False, False, False, True]
    assert counted(mask, torch.zeros(9), EVERYTHING.member_V, range(6), 1).tolist() == [True] + [False] * 5


def test_a_response_of_one_token_has_no_row() -> None:
    """Prefill yields it: there is nothing to draft."""
    assert response_runs(torch.tensor([0, 0, 1])) == []
    assert make_batch([noise([0, 0, 1])], EVERYTHING, 3) is None
    assert make_batch([], EVERYTHING, 3) is None


def test_a_sample_that_is_too_short_leaves_the_others_as_they_are() -> None:
    long, short = noise([0, 0, 1, 1, 1], seed=1), noise([0, 1], seed=2)
    alone, beside = make_batch([long], EVERYTHING, 2), make_batch([short, long, short], EVERYTHING, 2)
    assert alone is not None
    assert beside is not None
    assert alone.spans == beside.spans
    for name, value in vars(alone).items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, getattr(beside, name)), name


@given(masks=st.lists(masks, min_size=1, max_size=3), depth=st.integers(1, 5), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_batches_follow_the_definition_row_by_row(masks: list[list[int]], depth: int, seed: int) -> None:
    """For every sample, t and j in two loops: what counts, what is fed and what is learned."""
    samples = [noise(mask, seed + place) for place, mask in enumerate(masks)]
    map_ = vocabulary()
    batch = make_batch(samples, map_, depth)
    spans = iter(batch.spans if batch else ())
    ids = map_.target_ids_D.tolist()
    for sample, mask in zip(samples, masks, strict=True):
        tokens, T = sample.tokens_T.tolist(), len(mask)
        wanted = {
            (t, j)
            for t in range(T)
            for j in range(depth)
            if t + 2 + j < T and all(mask[t + 1 : t + 3 + j]) and int(sample.argmax_T[t + 1 + j]) in ids
        }
        if not any(mask[t] and mask[t + 1] for t in range(1, T - 1)):
            assert not wanted
            continue
        span = next(spans)
        assert batch is not None
        found = set()
        for q in range(span.queries.start, span.queries.stop):
            t = int(batch.query_Q[q]) - span.keys.start
            assert t == q - span.queries.start + span.first
            assert int(batch.position_R[batch.query_Q[q]]) == t
            for j in range(depth):
                ahead = t + 2 + j
                right = ids.index(tokens[ahead]) if ahead < T and tokens[ahead] in ids else -1
                assert int(batch.drafts_right_JQ[j, q]) == right
                if bool(batch.counts_JQ[j, q]):
                    found.add((t, j))
                    assert int(batch.token_JQ[j, q]) == tokens[t + 1 + j]
                    learned = batch.teacher_states_PH[batch.learns_JQ[j, q]]
                    assert torch.equal(learned, sample.states_TSH[t + 1 + j, -1])
        assert found == wanted
        for t, row in enumerate(range(span.keys.start, span.keys.stop)):
            assert torch.equal(batch.features_RF[row], sample.states_TSH[t, :-1].flatten())
            assert int(batch.next_token_R[row]) == tokens[t + 1]
            assert int(batch.position_R[row]) == t
    assert next(spans, None) is None


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ("abcbcbcd", ".....##."),
        ("aaaa", "..##"),
        ("abab", "...."),
        ("ababa", "....#"),
        ("abcabcabcabc", "......######"),
        ("abcabcabxabc", "......##...."),
        ("a", "."),
        ("", ""),
    ],
)
def test_the_third_repetition_of_a_period_is_found(tokens: str, expected: str) -> None:
    found = repeated(torch.tensor([ord(letter) for letter in tokens]))
    assert "".join("#" if bit else "." for bit in found.tolist()) == expected


def test_periods_longer_than_the_limit_are_no_loops() -> None:
    thrice = torch.arange(5).repeat(3)
    assert repeated(thrice, longest=5)[10:].all() and not repeated(thrice, longest=5)[:10].any()
    assert not repeated(thrice, longest=4).any()
