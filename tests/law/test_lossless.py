"""Law 1: speculative output is plain output."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from scipy import stats

from draftwing.core.errors import UserError
from draftwing.engine.proposers import lookup
from draftwing.engine.request import Answer, Request
from draftwing.engine.shape import AUTO, Shape
from draftwing.measure.divergence import rounding_between_shapes
from draftwing.ops.sampling import Sampling, distribution
from draftwing.target.backend import Forward
from tests.law.models import ROUNDING, TAPS, Fixed, Oracle, engine_with, random_drafter, require_same, tiny_target

PROMPTS = [tuple(range(41, 41 + length)) for length in (1, 2, 7, 30)]


def _speculate(folder: Path, request: Request, shape: int | Shape) -> Answer:
    """Decode plainly, and with a proposer that is right seven times of ten; both must be the same."""
    target, tokenizer = tiny_target(folder)
    plain = engine_with(target, tokenizer, None, 1).generate(request, speculate=False)
    oracle = Oracle([[*request.prompt, *plain.tokens]], wrong=0.3)
    answer = engine_with(target, tokenizer, None, shape, oracle).generate(request)
    require_same(target, request, plain, answer)
    return answer


@pytest.mark.parametrize("num_steps", range(1, 9))
@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_greedy_tokens_equal_plain_ones(tiny_folder: Path, prompt: tuple[int, ...], num_steps: int) -> None:
    answer = _speculate(tiny_folder, Request(prompt, 60), num_steps)
    assert sum(answer.counters.accepted) > 0, "the drafter was never right: nothing was tested"


TREES = [Shape(2, 2, 1), Shape(4, 2, 3), Shape(16, 4, 4), Shape(33, 3, 8), Shape(64, 8, 2), Shape(64, 8, 16)]


@pytest.mark.parametrize("shape", [*TREES, *(Shape(1 + width, width, 1) for width in range(2, 9)), AUTO], ids=str)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, top_p=0.9, seed=3)], ids=["greedy", "sampled"])
def test_trees_change_no_token(tiny_folder: Path, shape: Shape, sampling: Sampling) -> None:
    """Branches that are right, left out, or go on below wrong tokens; the accepted path is often not the first one."""
    for prompt in PROMPTS:
        answer = _speculate(tiny_folder, Request(prompt, 60, sampling), shape)
        assert answer.counters.tree_size > 1.2
        assert answer.counters.by["oracle"] > 5


@pytest.mark.parametrize("shape", [*TREES, AUTO], ids=str)
@pytest.mark.parametrize("draft_vocab", [272, 64])
def test_several_proposers_change_no_token(
    tiny_folder: Path, shape: Shape, draft_vocab: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drafter, lookup and one that is right now and then, in one tree; the drafter is fed what others had right."""
    # A random model hardly says two tokens twice; matches of one are common.
    monkeypatch.setattr(lookup, "SHORTEST", 1)
    target, tokenizer = tiny_target(tiny_folder)
    drafter, asked = random_drafter(target.config, draft_vocab), set()
    for prompt in (*PROMPTS[:3], PROMPTS[2] * 4):
        for sampling in (Sampling(), Sampling(1.1, seed=5)):
            request = Request(prompt, 50, sampling)
            plain = engine_with(target, tokenizer, None, 1).generate(request)
            oracle = Oracle([[*prompt, *plain.tokens]], wrong=0.4)
            answer = engine_with(target, tokenizer, drafter, shape, lookup.Lookup(), oracle).generate(request)
            require_same(target, request, plain, answer)
            asked |= answer.counters.asked.keys()
    assert asked == {"drafter", "lookup", "oracle"}


class _Keeper(Oracle):
    """Keeps the features that it is told, and proposes as an oracle does."""

    taps = TAPS

    def begin(self, token: int) -> None:
        super().begin(token)
        self.kept: list[torch.Tensor] = []

    def extend(self, tokens: list[int], features_MF: torch.Tensor | None) -> None:
        super().extend(tokens, features_MF)
        assert features_MF is not None and len(features_MF) == len(tokens)
        self.kept.append(features_MF)


@pytest.mark.parametrize("shape", [3, *TREES, AUTO], ids=str)
def test_proposers_are_told_the_features_of_the_text_whatever_branch_it_took(
    tiny_folder: Path, shape: int | Shape
) -> None:
    """Those of a prefill of the whole text: neither the rows of rejected branches nor of another order."""
    target, tokenizer = tiny_target(tiny_folder)
    plain = engine_with(target, tokenizer, None, 1).generate(Request(PROMPTS[2], 60))
    keeper = _Keeper([[*PROMPTS[2], *plain.tokens]], wrong=0.3)
    answer = engine_with(target, tokenizer, None, shape, keeper).generate(Request(PROMPTS[2], 60))
    text = [*PROMPTS[2], *answer.tokens]
    out = target.decoder(1, 400).forward(torch.tensor([text[:-1]]), range(1), taps=TAPS)
    assert out.taps_BMAH is not None
    assert keeper.fed[: len(text)] == text
    torch.testing.assert_close(
        torch.cat(keeper.kept)[: len(text) - 1], out.taps_BMAH[0].flatten(1), rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("draft_vocab", [272, 64])
@pytest.mark.parametrize("num_steps", [1, 3, 8])
def test_a_real_drafter_changes_no_token(tiny_folder: Path, num_steps: int, draft_vocab: int) -> None:
    target, tokenizer = tiny_target(tiny_folder)
    engine = engine_with(target, tokenizer, random_drafter(target.config, draft_vocab), num_steps)
    for prompt in PROMPTS:
        request = Request(prompt, 50)
        require_same(target, request, engine.generate(request, speculate=False), engine.generate(request))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(1.0, seed=1),
        Sampling(0.7, top_k=5, seed=2),
        Sampling(1.3, top_p=0.8, seed=3),
        Sampling(1.0, min_p=0.1, seed=4),
        Sampling(0.9, top_k=20, top_p=0.9, min_p=0.02, seed=5),
    ],
    ids=str,
)
@pytest.mark.parametrize("num_steps", [1, 4])
def test_sampled_tokens_of_a_seed_equal_plain_ones(tiny_folder: Path, sampling: Sampling, num_steps: int) -> None:
    answer = _speculate(tiny_folder, Request(PROMPTS[2], 60, sampling), num_steps)
    assert sum(answer.counters.accepted) > 0


def test_sampled_tokens_have_the_targets_distribution(tiny_folder: Path) -> None:
    """Third tokens of 1000 speculative answers against the exact marginal: chi-square, false alarm 1 in 1000.

    The first two new tokens are conditioned on by restricting the target to its two best tokens (top_k 2), so
    that the marginal over all paths can be enumerated; drafts come from the drafter, right or wrong.
    """
    target, tokenizer = tiny_target(tiny_folder)
    sampling = Sampling(1.5, top_k=2)
    prompt = PROMPTS[2]
    engine = engine_with(target, tokenizer, None, 3)
    exact: Counter[int] = Counter()
    for path, weight in _paths(engine, prompt, sampling, 3):
        exact[path[-1]] += weight
    # The fixed proposer drafts the greedy continuation, so that both acceptance and rejection are common.
    greedy = engine.generate(Request(prompt, 8), speculate=False)
    engine = engine_with(target, tokenizer, None, 3, Fixed(greedy.tokens))
    seen: Counter[int] = Counter()
    for seed in range(1000):
        seen[engine.generate(Request(prompt, 3, Sampling(1.5, top_k=2, seed=seed))).tokens[2]] += 1
    tokens = sorted(exact)
    assert set(seen) <= set(tokens)
    result = stats.chisquare([seen[token] for token in tokens], [1000 * exact[token] for token in tokens])
    assert result.pvalue > 1e-3


def _paths(engine, prompt, sampling, length):  # type: ignore[no-untyped-def]
    """All continuations of a length with their probabilities under the target."""
    paths = [((), 1.0)]
    for _ in range(length):
        grown = []
        for path, weight in paths:
            engine.backend.cache.rollback(0, 0)
            out = engine.backend.forward(torch.tensor([[*prompt, *path]]), range(1), logits="last")
            row = distribution(out.logits_BMV[0], sampling)[0]
            grown += [((*path, int(token)), weight * float(row[token])) for token in row.nonzero().flatten()]
        paths = grown
    return paths


def test_near_ties_are_sampled_at_their_odds(tiny_folder: Path) -> None:
    """p = (.51, .49), the drafter always on the likelier: neither is favoured (binomial, false alarm 1 in 1000)."""
    target, tokenizer = tiny_target(tiny_folder)
    engine = engine_with(target, tokenizer, None, 2, Fixed([10] * 64))
    logits = torch.full((272,), float("-inf"))
    logits[10], logits[20] = torch.tensor([0.51, 0.49]).log()
    _replace_logits(engine, logits.expand)
    ones = total = 0
    for seed in range(60):
        tokens = engine.generate(Request((1, 2), 60, Sampling(1.0, seed=seed))).tokens[1:]
        ones, total = ones + tokens.count(10), total + len(tokens)
    assert stats.binomtest(ones, total, 0.51).pvalue > 1e-3


def _replace_logits(engine, make) -> None:  # type: ignore[no-untyped-def]
    real = engine.backend.forward

    def forward(*args, **kwargs):  # type: ignore[no-untyped-def]
        out = real(*args, **kwargs)
        return Forward(make(out.logits_BMV.shape), out.taps_BMAH)

    engine.backend.forward = forward


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_nan_logits_are_an_error_at_every_row(tiny_folder: Path, place: int) -> None:
    target, tokenizer = tiny_target(tiny_folder)
    engine = engine_with(target, tokenizer, random_drafter(target.config), 3)

    def broken(shape: torch.Size) -> torch.Tensor:
        logits = torch.randn(shape)
        if shape[1] > place:
            logits[0, place, 100] = float("nan")
        return logits

    _replace_logits(engine, broken)
    with pytest.raises(UserError, match="NaN"):
        engine.generate(Request((1, 2, 3), 40))


def test_rounding_between_batch_shapes_is_within_the_stated_bound(tiny_folder: Path) -> None:
    """Logits of a row computed alone and among up to nine: the bound that 'near tie' means in float32.

    Some processors sum in the same order for one row and for nine, so 0 is as good as any; that a difference would
    be seen, `tests/measure/test_divergence.py` shows.
    """
    target, _ = tiny_target(tiny_folder)
    backend = target.decoder(1, 400)
    text = torch.randint(0, 256, (120,), generator=torch.Generator().manual_seed(0)).tolist()
    worst = max(rounding_between_shapes(backend, text, rows) for rows in range(2, 10))
    assert worst < ROUNDING
