"""`draftwing profile`: what a verify costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwing.cli import options
from draftwing.cli.boundary import print_json, verb
from draftwing.core.console import note, progress
from draftwing.core.errors import UserError

if TYPE_CHECKING:
    from draftwing.cli.parts import Loaded

TEXT = "Tell me why the sea is salty, and what a river has to do with it. "


@verb
def profile(
    target: options.Target = "default",
    largest: Annotated[int, typer.Option(min=1, max=256, help="Verify 1 to this many tokens.")] = 16,
    at: Annotated[int, typer.Option(min=1, max=options.MOST_TOKENS, help="Tokens of context before them.")] = 200,
    rounds: Annotated[int, typer.Option(min=1, max=100_000, help="Times that each size is run.")] = 25,
    record: Annotated[
        Path | None, typer.Option(help="Write the record here [default: runs/profile-DATE.json].")
    ] = None,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    threads: options.Threads = 0,
    ignore_config_key: options.IgnoreKey = None,
    json: options.Json = False,
) -> None:
    """Time verifies of 1 to 16 tokens, in shuffled order, and how far one is from the memory's floor.

    A cycle pays one verify of num_steps + 1 tokens: where t(m) / t(1) is near 1, drafts are nearly free to check.

    Example: `draftwing profile --largest 8 --at 1000`
    """
    from draftwing.cli import parts  # noqa: PLC0415
    from draftwing.core.provenance import here  # noqa: PLC0415
    from draftwing.engine.cost import verify_seconds  # noqa: PLC0415
    from draftwing.formats.records import Record, record_path, write_record  # noqa: PLC0415
    from draftwing.measure.verify_cost import costs, figures  # noqa: PLC0415
    from draftwing.target.config import default_taps  # noqa: PLC0415

    used = parts.set_threads(threads)
    loaded = parts.open_target(target, dtype, device, ignore_config_key)
    limit, length = loaded.target.config.max_context, at + largest
    if length > limit:
        raise UserError(f"{at} tokens of context and {largest} more exceed this model's {limit}.", "Lower --at.")
    backend = loaded.target.decoder(1, length)
    sizes = list(range(1, largest + 1))
    with progress("profile", rounds, "rounds") as meter:
        taken = verify_seconds(
            backend, _text(loaded, length), sizes, default_taps(loaded.target.config), rounds, meter.advance
        )
    provenance, head = here(used), loaded.target.weights.head
    # The memory that was probed is the CPU's.
    rate = 1e9 * provenance.machine.read_gb_s if head.device.type == "cpu" else None
    summary = figures(costs(taken), loaded.target.weights.read_bytes, rate)
    settings: dict[str, Any] = {
        "at": at,
        "rounds": rounds,
        **parts.arithmetic(loaded),
    }
    kept = Record(
        kind="profile",
        provenance=provenance,
        settings=settings,
        digests={"target": loaded.target.weights.fingerprint},
        figures=summary,
        samples=[{"tokens": size, "seconds": seconds} for size, seconds in taken.items()],
    )
    path = record or record_path(kept)
    write_record(path, kept)
    if json:
        print_json({"record": str(path), "settings": settings, **summary})
    else:
        _table(summary, settings)
        note(f"Record: {path}")


def _text(loaded: Loaded, length: int) -> list[int]:
    tokens = loaded.tokenizer.prompt([{"role": "user", "content": TEXT * (1 + length // 8)}])
    return (tokens * (1 + length // len(tokens)))[:length]


def _table(summary: dict[str, Any], settings: dict[str, Any]) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(
        title=f"a verify of m tokens after {settings['at']}, {settings['dtype']}, {settings['rounds']} rounds"
    )
    for name in ("m", "ms", "t(m) / t(1)", "95 % interval", "ms a token"):
        table.add_column(name, justify="right", overflow="fold")
    for size in summary["sizes"]:
        ms, ratio = size["ms"]["estimate"], size["ratio"]
        table.add_row(
            str(size["tokens"]),
            f"{ms:.1f}",
            f"{ratio['estimate']:.2f}",
            f"{ratio['low']:.2f} to {ratio['high']:.2f}",
            f"{ms / size['tokens']:.1f}",
        )
    Console().print(table)
    if summary["floor_ms"] is None:
        return
    typer.echo(
        f"Reading the weights once takes {summary['floor_ms']:.1f} ms here; a verify of one token takes "
        f"{summary['times_floor']:.1f} times as long."
    )
