"""`draftwing generate`: answer one prompt, streaming."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwing.cli import options
from draftwing.cli.boundary import print_json, verb
from draftwing.core.console import note
from draftwing.core.errors import UserError

if TYPE_CHECKING:
    from draftwing.engine.request import Answer

# Green: the drafter had it; blue: lookup; cyan: both.
COLOURS, PLAIN = {"drafter": "\x1b[32m", "lookup": "\x1b[34m", "drafter+lookup": "\x1b[36m"}, "\x1b[0m"


@verb
def generate(
    prompt: Annotated[str, typer.Argument(help="What to ask; '-' reads standard input.")],
    target: options.Target = "default",
    drafter: options.Drafter = "default",
    plain: Annotated[bool, typer.Option("--plain", help="Decode plainly, without proposals.")] = False,
    tree: options.Tree = "auto",
    proposers: options.Proposers = None,
    lookup_earlier: options.Earlier = 0,
    max_new_tokens: options.MaxNew = 256,
    stop: Annotated[list[str] | None, typer.Option(help="End the answer before this text (repeatable).")] = None,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = 0,
    context: options.Context = None,
    taps_convention: options.Convention = None,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    threads: options.Threads = 0,
    ignore_config_key: options.IgnoreKey = None,
    control_tokens: options.ControlTokens = "text",
    json: options.Json = False,
) -> None:
    """Answer a prompt.

    On a terminal, tokens are coloured by who proposed them: green the drafter, blue lookup, cyan both; the target's
    own have no colour.

    Example: `draftwing generate "Why is the sea salty?"`

    Without a drafter, for any model: `draftwing generate --target MODEL --drafter none "Why is the sea salty?"`
    """
    from draftwing.cli import parts  # noqa: PLC0415
    from draftwing.engine.request import Request  # noqa: PLC0415
    from draftwing.ops.sampling import Sampling  # noqa: PLC0415

    parts.set_threads(threads)
    text = _question(prompt)
    sampling = Sampling(temperature, top_k, top_p, min_p, seed)
    loaded = parts.open_target(target, dtype, device, ignore_config_key, control_tokens)
    with_drafter = None if plain else parts.open_drafter(drafter, loaded, taps_convention)
    how = None if plain else parts.Speculation(tree, proposers, lookup_earlier)
    engine = parts.make_engine(loaded, with_drafter, how, context)
    tokens = tuple(loaded.tokenizer.prompt([{"role": "user", "content": text}]))
    colour = sys.stdout.isatty() and not json
    request = Request(tokens, max_new_tokens, sampling, tuple(stop or ()))
    for event in engine.stream(request):
        if not json:
            shade = COLOURS.get(event.proposer) if colour else None
            typer.echo(f"{shade}{event.text}{PLAIN}" if shade else event.text, nl=False)
            sys.stdout.flush()
    answer = engine.answer
    assert answer is not None
    if json:
        print_json(_as_json(answer))
        return
    typer.echo()
    for line in answer.notes:
        note(line)
    note(_summary(answer))


def _question(typed: str) -> str:
    """What was typed or piped in; UserError when it is no text in UTF-8, or nothing."""
    from draftwing.capture.rows import checked_text  # noqa: PLC0415

    try:
        # Undecodable bytes of the command line arrive as lone surrogates, those of stdin as they are.
        text = sys.stdin.buffer.read().decode("utf-8-sig") if typed == "-" else checked_text(typed)
    except ValueError as error:
        raise UserError(f"The prompt is not text in UTF-8 ({error}).", "Convert it, with iconv say.") from None
    return text


def _summary(answer: Answer) -> str:
    rate = f"{answer.decode_rate:.1f} tok/s" if answer.decode_rate else "one token"
    line = f"[{len(answer.tokens)} tokens, {rate}, prefill {1e3 * answer.prefill_s:.0f} ms, ended by {answer.finish}"
    counters = answer.counters
    if counters.accept_length is not None:
        line += f"; accept length {counters.accept_length:.2f} in {counters.cycles} cycles"
        line += f" of {counters.tree_size:.1f} tokens"
        by = ", ".join(f"{count} {name}" for name, count in sorted(counters.by.items()))
        line += f"; accepted: {by or 'none'}"
    return line + "]"


def _as_json(answer: Answer) -> dict[str, Any]:
    counters = answer.counters
    return {
        "text": answer.text,
        "tokens": answer.tokens,
        "finish": answer.finish,
        "decode_tok_s": answer.decode_rate,
        "prefill_s": answer.prefill_s,
        "accept_length": counters.accept_length,
        "accept_rate": counters.accept_rate,
        "position_acceptances": counters.position_acceptances,
        "cycles": counters.cycles,
        "tree_size": counters.tree_size,
        "accepted_by": counters.by,
        "asked": counters.asked,
        "notes": answer.notes,
    }
