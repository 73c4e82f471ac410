"""The command `prove`: theorems about the code of the specification.

Entry point: `prove`, which the main command line adds to its own commands.
"""

from __future__ import annotations

import importlib.util
import sys
import time

import click
from rich.console import Console

from checkers.progress import Progress
from proofs.prove import UnknownTheoremError, prove_theorems, select_theorems
from proofs.recheck import Recheck
from proofs.report import EXIT_CODES, Report
from proofs.theorem import Theorem, ignore


@click.command()
@click.argument("names", nargs=-1)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    help="How to print the report.",
)
@click.option("--slow", "with_slow", is_flag=True, help="Also what takes minutes.")
@click.option("--recheck", is_flag=True, help="Also asks cvc5 about every obligation.")
def prove(names: tuple[str, ...], form: str, with_slow: bool, recheck: bool) -> None:
    """Proves the theorems NAMES, or all of them, about the code of the specification.

    Exit codes: 0 every theorem came out as it says, 1 one did not, 2 wrong usage, 3 undetermined.
    """
    try:
        theorems = select_theorems(names, with_slow=with_slow)
    except UnknownTheoremError as error:
        raise click.UsageError(str(error)) from error
    if recheck and importlib.util.find_spec("cvc5") is None:
        raise click.UsageError("--recheck needs cvc5; pip install 'schedcheck[proofs]'")
    report = _prove(theorems, with_slow=with_slow, recheck=recheck)
    click.echo(report.to_json() if form == "json" else report.to_text())
    sys.exit(EXIT_CODES[report.verdict])


def _prove(theorems: list[Theorem], *, with_slow: bool, recheck: bool) -> Report:
    confirm = Recheck() if recheck else None
    started = time.monotonic()
    with Progress(Console(stderr=True)) as progress:
        outcomes = tuple(
            prove_theorems(
                theorems, with_slow=with_slow, export=confirm or ignore, say=progress.say
            )
        )
    return Report(outcomes, time.monotonic() - started, confirm)
