"""A whole capture: every prompt once, whatever interrupts it; answers kept or made; room stated before it starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwing.capture.prompts import Prompt, prompt_of
from draftwing.capture.record import record, render_with_mask
from draftwing.capture.run import Answered, CaptureSettings, Source, capture
from draftwing.core.errors import UserError
from draftwing.formats.answers import TokenAnswer
from draftwing.formats.contract import Contract, Taps
from draftwing.formats.features import FeatureStore, Sample
from draftwing.ops.sampling import Sampling
from draftwing.target.load import Target, identity
from draftwing.target.tokenizer import Tokenizer
from tests.capture.small import TAPS, close

SETTINGS = CaptureSettings(max_prompt_tokens=48, max_new_tokens=8, sampling=Sampling(temperature=1.0, seed=1))
KEPT = CaptureSettings(max_prompt_tokens=48, max_new_tokens=32, keep_answers=True)


def _prompts(count: int = 9) -> list[Prompt]:
    return [
        prompt_of([{"role": "user", "content": f"question {number}" + "!" * (number % 4)}]) for number in range(count)
    ]


def _dialogues(count: int = 5) -> list[Prompt]:
    texts = [("user", "ask {}"), ("assistant", "say {}"), ("user", "and?"), ("assistant", "so {}!")]
    return [prompt_of([{"role": r, "content": t.format(n)} for r, t in texts]) for n in range(count)]


@pytest.fixture
def contract(target: Target, tokenizer: Tokenizer) -> Contract:
    return Contract(target=identity(target, tokenizer), taps=Taps(boundaries=TAPS), capture_dtype="float32")


def _source(target: Target, tokenizer: Tokenizer, settings: CaptureSettings = SETTINGS, slots: int = 3) -> Source:
    return Source(target.decoder(slots, settings.context), tokenizer, TAPS, settings)


def _same(one: Path, other: Path) -> None:
    for a, b in zip(FeatureStore(one), FeatureStore(other), strict=True):
        assert a.id == b.id
        assert torch.equal(a.tokens_T, b.tokens_T)
        assert torch.equal(a.mask_T, b.mask_T)
        assert torch.equal(a.argmax_T, b.argmax_T)
        assert close(a.states_TSH, b.states_TSH)


def test_every_prompt_becomes_one_sample(
    target: Target, tokenizer: Tokenizer, contract: Contract, tmp_path: Path
) -> None:
    held = capture(tmp_path, _prompts(), _source(target, tokenizer), contract)
    store = FeatureStore(tmp_path)
    assert [sample.id for sample in store] == sorted(prompt.id for prompt in _prompts())
    assert held == sum(store.lengths())
    assert store.contract == contract
    by_id = {prompt.id: list(prompt.messages) for prompt in _prompts()}
    for sample in store:
        start = tokenizer.prompt(by_id[sample.id])
        assert sample.tokens_T[: len(start)].tolist() == start
        assert sample.mask_T.tolist() == [0] * len(start) + [1] * (len(sample.tokens_T) - len(start))
        assert sample.argmax_T[: len(start)].eq(-1).all()


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), UserError("Broken.", "Mend it."), RuntimeError("bug")], ids=repr
)
@pytest.mark.parametrize("done", [0, 1, 5])
def test_a_capture_that_breaks_goes_on_without_holes_or_doubles(
    target: Target,
    tokenizer: Tokenizer,
    contract: Contract,
    tmp_path: Path,
    monkeypatch: Any,
    done: int,
    error: BaseException,
) -> None:
    """What was whole is kept; the rest is made as it would have been: the folder equals one of a single run."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    capture(whole, _prompts(), _source(target, tokenizer), contract)
    source = _source(target, tokenizer)
    real = source.samples

    def breaking(*arguments: Any) -> Iterator[Sample]:
        for number, sample in enumerate(real(*arguments)):
            if number == done:
                raise error
            yield sample

    monkeypatch.setattr(source, "samples", breaking)
    with pytest.raises(type(error)):
        capture(broken, _prompts(), source, contract)
    if done:
        assert len(FeatureStore(broken)) == done
    capture(broken, _prompts(), _source(target, tokenizer, slots=2), contract)
    _same(whole, broken)


def test_more_prompts_are_added_and_done_ones_left_alone(
    target: Target, tokenizer: Tokenizer, contract: Contract, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    some, all_at_once = tmp_path / "some", tmp_path / "all"
    capture(some, _prompts(4), _source(target, tokenizer), contract)
    first = {path.name: path.read_bytes() for path in some.glob("*.safetensors")}
    held = capture(some, _prompts(), _source(target, tokenizer), contract)
    assert "holds 4 of these 9 samples already" in " ".join(capsys.readouterr().err.split())
    assert {name: (some / name).read_bytes() for name in first} == first
    assert capture(all_at_once, _prompts(), _source(target, tokenizer), contract) == held
    _same(some, all_at_once)
    assert capture(some, _prompts(), _source(target, tokenizer), contract) == held, "nothing left to do"


def test_kept_answers_are_recorded_with_their_mask(
    target: Target, tokenizer: Tokenizer, contract: Contract, tmp_path: Path
) -> None:
    prompts = _dialogues()
    capture(tmp_path, prompts, _source(target, tokenizer, KEPT), contract)
    store = FeatureStore(tmp_path)
    assert len(store) == len(prompts)
    by_id = {prompt.id: list(prompt.messages) for prompt in prompts}
    for sample in store:
        tokens, mask = render_with_mask(tokenizer, by_id[sample.id])
        assert sample.tokens_T.tolist() == tokens
        assert sample.mask_T.bool().tolist() == mask
        assert "".join(tokenizer.decode(sample.tokens_T[sample.mask_T.bool()].tolist()).split()).startswith("say")
        again = record(target.decoder(), sample.id, tokens, mask, TAPS)
        assert close(sample.states_TSH, again.states_TSH)
        assert torch.equal(sample.argmax_T.long(), again.argmax_T)


def test_keeping_answers_that_are_not_there_is_refused(
    target: Target, tokenizer: Tokenizer, contract: Contract, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="has no answer to keep"):
        capture(tmp_path, _prompts(), _source(target, tokenizer, KEPT), contract)


@pytest.mark.parametrize(("settings", "limit"), [(SETTINGS, 48), (KEPT, 80)], ids=["prompt", "with-answer"])
def test_prompts_that_are_too_long_are_left_out_and_counted(
    target: Target, tokenizer: Tokenizer, settings: CaptureSettings, limit: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The longest that still fits has exactly `limit` tokens."""

    def of_length(tokens: int, letter: str) -> Prompt:
        answer = [{"role": "assistant", "content": "yes"}] if settings.keep_answers else []
        empty = [{"role": "user", "content": ""}, *answer]
        frame = len(tokenizer.conversation(empty) if settings.keep_answers else tokenizer.prompt(empty))
        return prompt_of([{"role": "user", "content": letter * (tokens - frame)}, *answer])

    fits = of_length(limit, "a")
    source = _source(target, tokenizer, settings)
    kept = source.render([fits, of_length(limit + 1, "b"), of_length(limit + 1, "c")])
    assert [(prompt.id, len(prompt.tokens)) for prompt in kept] == [(fits.id, limit)]
    assert f"Left out 2 prompts that are longer than {limit} tokens." in capsys.readouterr().err
    with pytest.raises(UserError, match="Every prompt is longer than the limit"):
        source.render([of_length(limit + 1, "d")])


def test_rows_that_can_not_be_kept_are_named_and_counted_and_the_others_go_on(
    target: Target, tokenizer: Tokenizer, contract: Contract, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same question with two answers is two samples; an answer to no question is none."""
    user, say = {"role": "user", "content": "ask"}, {"role": "assistant", "content": "say"}
    good = [
        prompt_of([user, say]),
        prompt_of([user, {**say, "content": "so"}]),
        prompt_of([user, say, {**say, "content": "more"}]),
    ]
    unasked, unanswered = prompt_of([say, user, say]), prompt_of([user])
    assert capture(tmp_path, [good[0], unasked, *good[1:], unanswered], _source(target, tokenizer, KEPT), contract)
    assert {sample.id for sample in FeatureStore(tmp_path)} == {prompt.id for prompt in good}
    said = " ".join(capsys.readouterr().err.split())
    assert f"Left out {unasked.id} (assistant: 'say' ...): Its first answer has no question before it." in said
    assert f"Left out {unanswered.id} (user: 'ask' ...): It has no answer to keep." in said
    assert "Left out 2 prompts that can not be used." in said


def test_a_prompt_without_a_sample_is_an_alarm(
    target: Target, tokenizer: Tokenizer, contract: Contract, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B11: 32 of 7000 samples captured and the rest dropped in silence."""
    source = _source(target, tokenizer)
    real = source.samples
    monkeypatch.setattr(source, "samples", lambda prompts, rendered: real(prompts, rendered[:-2]))
    with pytest.raises(RuntimeError, match="2 prompts yielded no sample"):
        capture(tmp_path, _prompts(), source, contract)
    assert len(FeatureStore(tmp_path)) == 7


def test_a_disk_that_is_too_small_is_refused_before_anything_runs(
    target: Target, tokenizer: Tokenizer, contract: Contract, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = _source(target, tokenizer)
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: type("Usage", (), {"free": 1000}))
    monkeypatch.setattr(source, "samples", lambda *_: pytest.fail("the target ran"))
    with pytest.raises(UserError, match=r"free and this may need .* GB\. Choose another folder"):
        capture(tmp_path, _prompts(), source, contract)


def test_no_more_is_written_than_was_said(
    target: Target, tokenizer: Tokenizer, contract: Contract, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[int] = []
    monkeypatch.setattr("draftwing.capture.run.require_room", lambda _folder, need, _say: said.append(need))
    capture(tmp_path, _prompts(40), _source(target, tokenizer), contract)
    header = 1000
    assert sum(path.stat().st_size - header for path in tmp_path.glob("*.safetensors")) <= said[0]


def test_a_folder_of_other_taps_is_refused(
    target: Target, tokenizer: Tokenizer, contract: Contract, tmp_path: Path
) -> None:
    capture(tmp_path, _prompts(2), _source(target, tokenizer), contract)
    other = contract.model_copy(update={"taps": Taps(boundaries=(2, 4, 6))})
    with pytest.raises(UserError, match="of another target or other taps"):
        capture(tmp_path, _prompts(), _source(target, tokenizer), other)


def test_known_answers_give_what_answering_gave(
    target: Target, tokenizer: Tokenizer, contract: Contract, tmp_path: Path
) -> None:
    """Answers that were made, taken as token ids: the same samples, states but for rounding; one too long left out."""
    made = tmp_path / "made"
    capture(made, _prompts(), _source(target, tokenizer), contract)
    answers = [
        TokenAnswer(sample.id, sample.tokens_T.tolist(), sample.mask_T.bool().tolist()) for sample in FeatureStore(made)
    ]
    known = tmp_path / "known"
    long = TokenAnswer("ffff", [1] * 401, [True] * 401)
    tokens = capture(known, [], Answered(target.decoder(1, 400), [*answers, long], TAPS), contract)
    assert tokens == sum(len(answer.tokens) for answer in answers)
    _same(made, known)
