"""`draftwing pull`: fetch a target."""

from __future__ import annotations

from typing import Annotated

import typer

from draftwing.cli import options
from draftwing.cli.boundary import print_json, verb


@verb
def pull(
    target: Annotated[str, typer.Argument(help="'default', or a hub id.")] = "default",
    json: options.Json = False,
) -> None:
    """Fetch a target once and print its folder; later runs need no network.

    Example: `draftwing pull`
    """
    from draftwing.target.config import read_target_config  # noqa: PLC0415
    from draftwing.target.load import target_folder  # noqa: PLC0415

    folder = target_folder(target)
    config = read_target_config(folder)
    if json:
        print_json(
            {"folder": str(folder), "family": config.family, "layers": config.layers, "hidden_size": config.hidden_size}
        )
    else:
        typer.echo(folder)
