"""The command `draftwing` and its verbs."""

from __future__ import annotations

import typer

from draftwing import __version__
from draftwing.cli.bench import bench
from draftwing.cli.capture import capture
from draftwing.cli.generate import generate
from draftwing.cli.profile import profile
from draftwing.cli.pull import pull
from draftwing.cli.train import train

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="EAGLE-3 speculative decoding: capture a target's states, train a drafter, decode losslessly, measure.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for function in (pull, capture, train, generate, bench, profile):
    app.command()(function)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"draftwing {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def main() -> None:
    """Run the command line."""
    app()
