"""The bench: sides alternate, figures follow from counts, differences are found and weighed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from draftwing.engine.request import Answer, Counters, Request
from draftwing.measure.bench import Pair, figures, raw_samples, run_pairs
from draftwing.measure.divergence import Divergence, first_divergence
from tests.law.models import engine_with, random_drafter, tiny_target


class _Silent:
    def advance(self, amount: float, text: str = "") -> None:
        pass

    def resume(self, amount: float) -> None:
        pass


def _answer(tokens: int, decode_s: float, cycles: int = 0, accepted: int = 0) -> Answer:
    """Cycles of two drafts each; both are accepted, one of each proposer, in the first `accepted` cycles."""
    counters = Counters(asked={"drafter": cycles} if cycles else {})
    for cycle in range(cycles):
        matched = 2 if cycle < accepted else 0
        counters.add_cycle(3, matched, matched or 1, matched + 1)
    if accepted:
        counters.by = {"drafter": accepted, "lookup": accepted}
    phases = {"drafter": decode_s * 0.2, "target": decode_s * 0.6, "choose": decode_s * 0.1, "lookup": decode_s * 0.05}
    return Answer(list(range(tokens)), "", "length", counters, 0.1, decode_s, phases, [], [])


def _pair(plain: Answer, speculative: Answer, divergence: Divergence | None = None) -> Pair:
    return Pair("x", 5, plain, speculative, divergence)


def test_figures_follow_from_the_samples() -> None:
    pairs = [_pair(_answer(11, 1.0), _answer(11, 0.5, cycles=6, accepted=2)) for _ in range(3)]
    out = figures(pairs)
    assert out["plain_tok_s"]["estimate"] == pytest.approx(10.0)
    assert out["speculative_tok_s"]["estimate"] == pytest.approx(20.0)
    assert out["speed_up"]["estimate"] == pytest.approx(2.0)
    assert out["speed_up_with_prefill"]["estimate"] == pytest.approx(1.1 / 0.6)
    assert out["accept_length"]["estimate"] == pytest.approx(10 / 6)
    assert out["accept_rate"] == pytest.approx(4 / 12)
    assert out["position_acceptances"] == pytest.approx([2 / 6, 1.0])
    assert out["identical"] == 3
    assert out["cycle_ms"]["cycle"] == pytest.approx(1e3 * 0.5 / 6)
    assert out["cycle_ms"]["overhead_share"] == pytest.approx(0.1)
    assert out["cycle_ms"]["lookup"] == pytest.approx(1e3 * 0.5 / 6 * 0.05)
    assert out["tree_size"] == 3
    assert out["accepted_by"] == pytest.approx({"drafter": 0.2, "lookup": 0.2})
    assert out["asked"] == {"drafter": 1}


def test_answers_of_one_token_have_no_rate_and_break_nothing() -> None:
    out = figures([_pair(_answer(1, 0.0), _answer(1, 0.0))])
    assert out["plain_tok_s"] is out["speed_up"] is out["accept_length"] is out["cycle_ms"] is None
    assert out["prompts"] == 1


def test_loops_are_counted_in_the_plain_text() -> None:
    """Of a text without repetition nothing is; `a b a b ...` repeats from its eleventh token on."""
    loop = _answer(20, 1.0)
    loop.tokens = [1, 2] * 10
    assert figures([_pair(_answer(20, 1.0), _answer(20, 1.0))])["looped"] == 0
    assert figures([_pair(loop, loop)])["looped"] == pytest.approx(10 / 12)


def test_sides_alternate_and_the_record_has_every_sample(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, tokenizer = tiny_target(tiny_folder)
    engine = engine_with(target, tokenizer, random_drafter(target.config), 2)
    order: list[bool] = []
    shown: list[tuple[int, ...]] = []
    real = engine.generate

    def watched(request: Request, *, speculate: bool = True) -> Answer:
        order.append(speculate)
        shown.append(request.prompt)
        return real(request, speculate=speculate)

    monkeypatch.setattr(engine, "generate", watched)
    requests = {str(number): Request((number + 1, 7, 9), 6) for number in range(3)}
    pairs = run_pairs(engine, requests, _Silent())
    assert order == [False, True, False, True, True, False, False, True]
    # Warm-up shows no prompt that counts: lookup can remember earlier texts.
    assert not {*shown[:2]} & {request.prompt for request in requests.values()}
    samples = raw_samples(pairs)
    assert [sample["id"] for sample in samples] == ["0", "1", "2"]
    assert all(sample["plain"]["tokens"] == 6 and sample["divergence"] is None for sample in samples)


def test_a_difference_is_found_with_its_gap(tiny_folder: Path) -> None:
    """The gap is what the target's logits say at that place, the plain token leading."""
    target, tokenizer = tiny_target(tiny_folder)
    engine = engine_with(target, tokenizer, random_drafter(target.config), 2)
    prompt = (3, 1, 4)
    plain = engine.generate(Request(prompt, 8), speculate=False).tokens
    engine.backend.cache.rollback(0, 0)
    logits = engine.backend.forward(torch.tensor([[*prompt, *plain[:5]]]), range(1), logits="last").logits_BMV
    assert logits is not None
    second = int(logits[0, -1].topk(2).indices[1])
    found = first_divergence(engine.backend, prompt, plain, [*plain[:5], second, 0, 0])
    assert found is not None
    assert (found.place, found.plain_token, found.speculative_token) == (5, plain[5], second)
    assert found.gap == pytest.approx(float(logits[0, -1, plain[5]] - logits[0, -1, second]), abs=1e-4)
    assert found.gap > 0
    assert first_divergence(engine.backend, prompt, plain, list(plain)) is None


def test_an_answer_that_only_ends_earlier_is_a_difference(tiny_folder: Path) -> None:
    target, _ = tiny_target(tiny_folder)
    found = first_divergence(target.decoder(1, 64), (1, 2), [5, 6, 7], [5, 6])
    assert found is not None
    assert (found.place, found.plain_token, found.speculative_token) == (2, 7, -1)
