"""States of conversations that have their answers already: one prefill each, and the mask of response tokens."""

from __future__ import annotations

import torch

from draftwing.core.errors import UserError
from draftwing.formats.features import Sample
from draftwing.ops.sampling import argmax
from draftwing.target.backend import Backend
from draftwing.target.tokenizer import Tokenizer

# Rows to a prefill forward: enough for the matrix products, few enough that logits of them fit anywhere.
PREFILL_ROWS = 512


def with_last(taps: tuple[int, ...], layers: int) -> tuple[tuple[int, ...], list[int]]:
    """(boundaries to tap, where taps and B_n lie among them): B_n is tapped once, also when it is one of the taps."""
    kept = tuple(sorted({*taps, layers}))
    return kept, [kept.index(boundary) for boundary in (*taps, layers)]


def record(backend: Backend, id: str, tokens: list[int], mask: list[bool], taps: tuple[int, ...]) -> Sample:
    """Run `tokens` through slot 0 and keep taps, B_n and the greedy choice after each response token."""
    kept, last = with_last(taps, backend.config.layers)
    backend.cache.lengths[0] = 0
    states, best = [], []
    device = backend.cache.keys_LSKCD.device
    for start in range(0, len(tokens), PREFILL_ROWS):
        rows_1M = torch.tensor([tokens[start : start + PREFILL_ROWS]], device=device)
        out = backend.forward(rows_1M, range(1), taps=kept)
        assert out.taps_BMAH is not None and out.logits_BMV is not None
        states.append(out.taps_BMAH[0, :, last].cpu())
        best.append(argmax(out.logits_BMV[0]).cpu())
    mask_T = torch.tensor(mask)
    return Sample(id, torch.tensor(tokens), mask_T, torch.where(mask_T, torch.cat(best), -1), torch.cat(states))


def require_answered(messages: list[dict[str, str]]) -> None:
    """UserError unless there is an answer, and a question before it."""
    roles = [message["role"] for message in messages]
    if "assistant" not in roles:
        raise UserError("It has no answer to keep.", "Leave out --keep-answers to have its prompt answered.")
    if "user" not in roles[: roles.index("assistant")]:
        raise UserError("Its first answer has no question before it.", "Add the question, or drop the conversation.")


def render_with_mask(tokenizer: Tokenizer, messages: list[dict[str, str]]) -> tuple[list[int], list[bool]]:
    """Token ids of a conversation and which of them the assistant wrote.

    Each answer is what the rendering up to and with it adds to the rendering that awaits it:

        prompt(m1)          <sys> <user m1> <assistant>
        conversation(m1 m2) <sys> <user m1> <assistant> m2 <end>
        mask                  0       0          0       1   1

    Raises UserError when the one is no prefix of the other: such a template can not be masked.
    """
    tokens = tokenizer.conversation(messages)
    mask = [False] * len(tokens)
    for turn, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = tokenizer.prompt(messages[:turn])
        after = tokenizer.conversation(messages[: turn + 1])
        if after[: len(before)] != before or tokens[: len(after)] != after:
            raise UserError(
                "The chat template renders a turn differently once it is answered.",
                "Regenerate the answers instead of keeping them, or use a template without history edits.",
            )
        mask[len(before) : len(after)] = [True] * (len(after) - len(before))
    return tokens, mask
