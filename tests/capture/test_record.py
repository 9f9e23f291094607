"""Conversations with answers: which tokens the assistant wrote, and the states of one prefill."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from draftwing.capture import record as record_module
from draftwing.capture.record import record, render_with_mask
from draftwing.core.errors import UserError
from draftwing.target.load import Target
from draftwing.target.tokenizer import Tokenizer
from tests.capture.small import TAPS, close, token_prompts

PLAIN = (
    "{% for m in messages %}[{{ m.role[0] }}]{{ m.content }};{% endfor %}{% if add_generation_prompt %}[a]{% endif %}"
)


def _dialogue(*texts: str, system: bool = False) -> list[dict[str, str]]:
    roles = ["user", "assistant"] * len(texts)
    first = [{"role": "system", "content": "s"}] if system else []
    return first + [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]


def _with_template(tiny_folder: Path, folder: Path, template: str) -> Tokenizer:
    shutil.copytree(tiny_folder, folder)
    (folder / "chat_template.jinja").write_text(template)
    return Tokenizer(folder)


@pytest.mark.parametrize(
    ("messages", "text", "mask"),
    [
        (_dialogue("ab", "cd"), "[u]ab;[a]cd;", "000000000111"),
        (_dialogue("ab", "cd", "e", "fgh"), "[u]ab;[a]cd;[u]e;[a]fgh;", "000000000111000000001111"),
        (_dialogue("ab", "cd", "e"), "[u]ab;[a]cd;[u]e;", "00000000011100000"),
        (_dialogue("ab", "cd", system=True), "[s]s;[u]ab;[a]cd;", "00000000000000111"),
        (_dialogue("ab", ""), "[u]ab;[a];", "0000000001"),
        (_dialogue("ab"), "[u]ab;", "000000"),
    ],
    ids=["one-turn", "two-turns", "open-end", "system", "empty-answer", "no-answer"],
)
def test_the_mask_is_what_the_assistant_wrote(
    tmp_path: Path, tiny_folder: Path, messages: list[dict[str, str]], text: str, mask: str
) -> None:
    tokenizer = _with_template(tiny_folder, tmp_path / "model", PLAIN)
    tokens, marked = render_with_mask(tokenizer, messages)
    assert tokenizer.decode(tokens) == text
    assert "".join("01"[flag] for flag in marked) == mask


def test_the_end_token_belongs_to_the_answer(tokenizer: Tokenizer) -> None:
    tokens, mask = render_with_mask(tokenizer, _dialogue("ab", "cd"))
    answer = [token for token, marked in zip(tokens, mask, strict=True) if marked]
    assert 256 in answer
    assert tokenizer.decode(answer) == "cd\n"
    assert tokens[: mask.index(True)] == tokenizer.prompt(_dialogue("ab"))


EDITS_HISTORY = PLAIN.replace("{{ m.content }}", "{{ m.content if loop.last or m.role == 'user' else 'cut' }}")
OPENS_A_THOUGHT = PLAIN.replace("[a]{%", "[a]<think>{%")


@pytest.mark.parametrize(
    ("template", "messages"),
    [(EDITS_HISTORY, _dialogue("ab", "long answer", "e", "fg")), (OPENS_A_THOUGHT, _dialogue("ab", "cd"))],
    ids=["edits-history", "opens-a-thought"],
)
def test_a_template_that_renders_a_turn_twice_is_refused(
    tmp_path: Path, tiny_folder: Path, template: str, messages: list[dict[str, str]]
) -> None:
    """T22: with either, the mask would stand on the wrong tokens."""
    tokenizer = _with_template(tiny_folder, tmp_path / "model", template)
    with pytest.raises(UserError, match=r"renders a turn differently once it is answered.*Regenerate the answers"):
        render_with_mask(tokenizer, messages)


def test_a_template_that_edits_history_is_good_for_one_turn(tmp_path: Path, tiny_folder: Path) -> None:
    tokenizer = _with_template(tiny_folder, tmp_path / "model", EDITS_HISTORY)
    assert sum(render_with_mask(tokenizer, _dialogue("ab", "long"))[1]) == 5


@torch.inference_mode()
def test_record_keeps_taps_then_the_last_boundary_and_the_greedy_choice(target: Target) -> None:
    tokens = token_prompts(5)[4].tokens
    mask = [place >= 10 for place in range(len(tokens))]
    sample = record(target.decoder(), "x", tokens, mask, TAPS)
    out = target.decoder().forward(torch.tensor([tokens]), range(1), taps=(*TAPS, 8))
    assert out.taps_BMAH is not None
    assert out.logits_BMV is not None
    assert close(sample.states_TSH, out.taps_BMAH[0])
    greedy = out.logits_BMV[0].argmax(-1).tolist()
    assert sample.argmax_T.tolist() == [-1] * 10 + greedy[10:]
    assert sample.tokens_T.tolist() == tokens
    assert sample.mask_T.tolist() == mask
    assert (sample.states_TSH[10:, -1] @ target.weights.head.T).argmax(-1).tolist() != greedy[10:], "norm comes between"


def test_a_long_conversation_in_chunks_is_the_same(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = [token for prompt in token_prompts(4, 12) for token in prompt.tokens]
    mask = [place % 3 == 0 for place in range(len(tokens))]
    whole = record(target.decoder(), "x", tokens, mask, TAPS)
    monkeypatch.setattr(record_module, "PREFILL_ROWS", 20)
    chunks = record(target.decoder(), "x", tokens, mask, TAPS)
    assert close(chunks.states_TSH, whole.states_TSH)
    assert torch.equal(chunks.argmax_T, whole.argmax_T)


def test_recording_does_not_depend_on_what_the_slot_held(target: Target) -> None:
    """B9: repeated calls on one decoder."""
    decoder, prompts = target.decoder(), token_prompts(3, 8)
    for prompt in [*prompts, *prompts]:
        mask = [place > 2 for place in range(len(prompt.tokens))]
        again = record(decoder, prompt.id, prompt.tokens, mask, TAPS)
        fresh = record(target.decoder(), prompt.id, prompt.tokens, mask, TAPS)
        assert torch.equal(again.states_TSH, fresh.states_TSH)


def test_the_last_boundary_may_be_a_tap(target: Target) -> None:
    """T3: drafters that are fed B_n exist; S is still taps + 1."""
    sample = record(target.decoder(), "x", [1, 2, 3], [False, True, True], (2, 4, 8))
    assert sample.states_TSH.shape[1] == 4
    assert torch.equal(sample.states_TSH[:, 2], sample.states_TSH[:, 3])
