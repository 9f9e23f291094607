"""Options that several verbs share, each written once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

import typer

# Largest values: beyond any use, and far enough below what overflows.
MOST_TOKENS = 2**20
MOST_SAMPLES = 2**31
SEEDS = 2**62


def finite(value: float | None) -> float | None:
    """Callback of every option that is no whole number: nan and infinity are refused."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value


Target = Annotated[str, typer.Option(help="Target: 'default' (SmolLM2-135M-Instruct), a model folder, or a hub id.")]
Dtype = Annotated[str, typer.Option(help="auto, bfloat16, float32 or float16.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Threads = Annotated[int, typer.Option(min=0, max=1024, help="CPU threads; 0 takes the cores this process may use.")]
IgnoreKey = Annotated[
    list[str] | None,
    typer.Option("--ignore-config-key", help="A key of the target's config that changes nothing (repeatable)."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON on stdout.")]
Drafter = Annotated[
    str, typer.Option(help="Drafter folder, 'default' (the one that ships for the default target), or 'none'.")
]
Tree = Annotated[
    str,
    typer.Option(
        help="What a cycle verifies: auto (sized by measured cost), chain:3 (three drafts), 16:4 (16 nodes, the best 4 "
        "children of a node), 16:4:5 (5 steps of the drafter)."
    ),
]
Proposers = Annotated[
    str | None,
    typer.Option(help="Who proposes: drafter, lookup, or both as drafter,lookup [default: all there are]."),
]
Earlier = Annotated[
    int,
    typer.Option(
        "--lookup-earlier",
        min=0,
        max=MOST_TOKENS,
        help="Also look up in so many tokens of this process's earlier answers; 0 is off.",
    ),
]
Convention = Annotated[
    str | None,
    typer.Option(
        "--taps-convention", help="For a drafter without contract.json: are its layer ids 'boundary' or 'output'?"
    ),
]
Context = Annotated[
    int | None,
    typer.Option(min=1, max=2**24, help="Tokens of context to allocate [default: the model's limit, at most 4096]."),
]
Prompts = Annotated[
    str,
    typer.Option(
        help="Rows with messages, conversations, prompt or text (JSONL or a JSON array), lines of text, all also "
        "gzipped, or 'sharegpt' / 'humaneval'."
    ),
]
PromptsFormat = Annotated[
    Literal["auto", "lines", "jsonl", "json"],
    typer.Option(help="How to read --prompts; auto goes by its first character: [ is json, { is jsonl, else lines."),
]
ControlTokens = Annotated[
    Literal["text", "parsed"],
    typer.Option(help="What a control token's name in a message is: text as it stands, or parsed: the token itself."),
]
Split = Annotated[
    str, typer.Option(help="all, train or heldout: the held-out part is chosen by digest and never trained on.")
]
Limit = Annotated[int | None, typer.Option(min=1, max=MOST_SAMPLES, help="Take at most so many prompts.")]
MaxNew = Annotated[int, typer.Option("--max-new-tokens", min=1, max=MOST_TOKENS, help="Longest answer, in tokens.")]
Taps = Annotated[str | None, typer.Option(help="Boundaries to record, as 2,15,27 [default: B_2, B_n//2, B_n-3].")]
Temperature = Annotated[float, typer.Option(callback=finite, help="0 is greedy.")]
TopK = Annotated[int, typer.Option(help="Sample among the k best; 0 is off.")]
TopP = Annotated[float, typer.Option(callback=finite, help="Sample within this cumulative probability; 1 is off.")]
MinP = Annotated[
    float, typer.Option(callback=finite, help="Drop tokens below this share of the best one's probability; 0 is off.")
]
Seed = Annotated[
    int,
    typer.Option(
        min=-SEEDS, max=SEEDS, help="Seed of sampling; the same seed gives the same text, with and without a drafter."
    ),
]
Batch = Annotated[int, typer.Option(min=1, max=4096, help="Answers under way at once.")]
MaxPrompt = Annotated[
    int, typer.Option("--max-prompt-tokens", min=1, max=MOST_TOKENS, help="Leave out prompts that are longer.")
]
Out = Annotated[Path, typer.Option("--out", help="Folder to write to; an interrupted run goes on there.")]
Answers = Annotated[
    Path | None,
    typer.Option(
        help="Answers as token ids, one [prompt id, tokens, mask] a line (.gz or plain); --prompts has no part then."
    ),
]
