"""`draftwing capture`: run the target over prompts and write features."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftwing.cli import options
from draftwing.cli.boundary import print_json, verb
from draftwing.core.errors import UserError

if TYPE_CHECKING:
    from draftwing.capture.prompts import Prompt
    from draftwing.capture.run import CaptureSettings
    from draftwing.cli.parts import Loaded


@verb
def capture(
    out: options.Out,
    prompts: options.Prompts = "sharegpt",
    prompts_format: options.PromptsFormat = "auto",
    split: options.Split = "train",
    limit: options.Limit = None,
    target: options.Target = "default",
    taps: options.Taps = None,
    batch: options.Batch = 64,
    max_prompt_tokens: options.MaxPrompt = 512,
    max_new_tokens: options.MaxNew = 256,
    keep_answers: Annotated[
        bool, typer.Option("--keep-answers", help="Keep the answers of the file instead of regenerating them.")
    ] = False,
    only_answers: Annotated[
        bool, typer.Option("--only-answers", help="Write answers.jsonl (token ids) instead of features.")
    ] = False,
    answers: options.Answers = None,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = 0,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    threads: options.Threads = 0,
    ignore_config_key: options.IgnoreKey = None,
    control_tokens: options.ControlTokens = "text",
    json: options.Json = False,
) -> None:
    """Answer prompts with the target and write its states, tokens and mask, with their contract.

    Stopping and repeating the command goes on where it stopped.

    Example: `draftwing capture --prompts sharegpt --limit 1000 --out features/train`

    Answers alone, a byte or two a token: `draftwing capture --only-answers --temperature 0.8 --out answers`

    With answers that exist as token ids: `draftwing capture --answers answers.jsonl.gz --out features/train`
    """
    from draftwing.capture.run import Answered, CaptureSettings, Source  # noqa: PLC0415
    from draftwing.capture.run import capture as run  # noqa: PLC0415
    from draftwing.cli import parts  # noqa: PLC0415
    from draftwing.formats.contract import Contract, Taps  # noqa: PLC0415
    from draftwing.formats.files import owned  # noqa: PLC0415
    from draftwing.ops.sampling import Sampling  # noqa: PLC0415
    from draftwing.target.load import identity  # noqa: PLC0415

    parts.set_threads(threads, batches=True)
    settings = CaptureSettings(
        max_prompt_tokens, max_new_tokens, Sampling(temperature, top_k, top_p, min_p, seed), keep_answers
    )
    if (answers is not None) + keep_answers + only_answers > 1:
        raise UserError("--answers, --keep-answers and --only-answers exclude each other.", "Give one of them.")
    chosen = [] if answers else parts.parse_prompts(prompts, split, limit, prompts_format, answered=keep_answers)
    loaded = parts.open_target(target, dtype, device, ignore_config_key, control_tokens)
    if only_answers:
        with owned(out):
            _answer(out, chosen, loaded, batch, settings, json)
        return
    boundaries = parts.parse_taps(taps, loaded)
    contract = Contract(
        target=identity(loaded.target, loaded.tokenizer),
        taps=Taps(boundaries=boundaries),
        capture_dtype=str(loaded.target.weights.head.dtype).removeprefix("torch."),
    )
    capacity = min(settings.context, loaded.target.config.max_context)
    source: Answered | Source
    if answers:
        known = parts.parse_answers(answers, split, limit, loaded)
        capacity = min(max(len(answer.tokens) for answer in known), loaded.target.config.max_context)
        source = Answered(loaded.target.decoder(1, capacity), known, boundaries)
    else:
        backend = loaded.target.decoder(1 if keep_answers else batch, capacity)
        source = Source(backend, loaded.tokenizer, boundaries, settings)
    with owned(out):
        tokens = run(out, chosen, source, contract)
    if json:
        print_json({"folder": str(out), "tokens": tokens, "boundaries": boundaries})
    else:
        typer.echo(f"{tokens:,} tokens in {out}")


def _answer(
    out: Path, prompts: list[Prompt], loaded: Loaded, batch: int, settings: CaptureSettings, json: bool
) -> None:
    """Let the target answer and keep token ids only, in `out/answers.jsonl`."""
    from draftwing.capture.on_the_fly import collect_answers  # noqa: PLC0415
    from draftwing.capture.run import Source  # noqa: PLC0415

    backend = loaded.target.decoder(batch, min(settings.context, loaded.target.config.max_context))
    path = out / "answers.jsonl"
    held = collect_answers(path, prompts, Source(backend, loaded.tokenizer, (), settings))
    tokens = sum(len(answer.tokens) for answer in held)
    if json:
        print_json({"file": str(path), "answers": len(held), "tokens": tokens})
    else:
        typer.echo(f"{len(held):,} answers, {tokens:,} tokens in {path}")
