"""A pass over the samples: each of them once, in an order that the seed decides."""

from __future__ import annotations

import pytest

from draftwing.train.batch import plan

LENGTHS = [30, 5, 80, 12, 12, 41, 7, 300, 64, 2]


@pytest.mark.parametrize("batch_tokens", [1, 50, 100, 10_000])
def test_every_sample_comes_once(batch_tokens: int) -> None:
    batches = plan(LENGTHS, batch_tokens, seed=0)
    assert sorted(number for batch in batches for number in batch) == list(range(len(LENGTHS)))
    assert all(batches)


@pytest.mark.parametrize("batch_tokens", [50, 100, 1000])
def test_a_batch_holds_its_tokens_at_most_unless_it_is_one_long_sample(batch_tokens: int) -> None:
    batches = plan(LENGTHS, batch_tokens, seed=3)
    sums = [sum(LENGTHS[number] for number in batch) for batch in batches]
    assert all(tokens <= batch_tokens or len(batch) == 1 for tokens, batch in zip(sums, batches, strict=True))
    # None is closed early: the next sample would not have fitted.
    heads = [LENGTHS[batch[0]] for batch in batches[1:]]
    assert all(tokens + head > batch_tokens for tokens, head in zip(sums, heads, strict=False))


def test_another_seed_is_another_order_and_the_same_seed_the_same() -> None:
    assert plan(LENGTHS, 50, seed=1) == plan(LENGTHS, 50, seed=1)
    orders = {str(plan(LENGTHS, 1, seed=seed)) for seed in range(5)}
    assert len(orders) == 5
