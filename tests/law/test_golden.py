"""A drafter from elsewhere, against what another engine made of it (float32, recorded answers and counters).

The drafter is 15 MB and is not part of this repository: the test runs where the folder of its files is named by
DRAFTWING_GOLDEN or lies beside the checkout, and is left out elsewhere.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from draftwing.drafter.checkpoint import load_drafter
from draftwing.engine.engine import Engine
from draftwing.engine.proposers.drafter import EagleProposer
from draftwing.engine.request import Counters, Request
from draftwing.engine.shape import chain
from draftwing.target.load import load_target
from draftwing.target.tokenizer import Tokenizer

GOLDEN = Path(os.environ.get("DRAFTWING_GOLDEN", Path(__file__).resolve().parents[3] / "shared" / "golden"))


@pytest.mark.golden
def test_the_tokens_and_counters_of_another_engine(real_target: str) -> None:
    answers = json.loads((GOLDEN / "vllm-float32.json").read_text())
    torch.set_num_threads(os.cpu_count() or 1)
    target = load_target(real_target, "float32", "cpu")
    drafter = load_drafter(GOLDEN / "drafter", torch.float32, torch.device("cpu"), "boundary")
    backend = target.decoder(1, 512)
    shape = chain(answers["num_speculative_tokens"])
    engine = Engine(backend, Tokenizer(target.folder), [EagleProposer(drafter, backend.embed, 512)], shape)
    total = Counters()
    for prompt, wanted in zip(answers["prompt_ids"], answers["output_ids"], strict=True):
        answer = engine.generate(Request(tuple(prompt), 96))
        total.add(answer.counters)
        assert answer.tokens == wanted
    theirs = answers["counters_with_drafter"]
    assert total.cycles == pytest.approx(theirs["num_drafts"], rel=0.02)
    assert total.proposed == pytest.approx(theirs["num_draft_tokens"], rel=0.02)
    assert sum(total.accepted) == pytest.approx(theirs["num_accepted_tokens"], rel=0.02)
    # The other engine counts drafts past an answer's end, at most one to a position and answer.
    for ours, their in zip(total.accepted, theirs["num_accepted_tokens_per_pos"], strict=True):
        assert abs(ours - their) <= max(0.02 * their, 2)
