"""The command `prove`: theorems about the code of the specification.

Entry point: `prove`, which the main command line adds to its own commands.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
from pathlib import Path

import click
from rich.console import Console

from checkers.progress import Progress
from proofs.export import Export, ExportError, open_export
from proofs.interrupts import kept_interrupts
from proofs.prove import (
    Outcome,
    UnknownTheoremError,
    prove_theorems,
    select_core,
    select_theorems,
)
from proofs.recheck import Recheck
from proofs.report import EXIT_CODES, Report
from proofs.theorem import Obligation, Theorem


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    help="How to print the report.",
)
@click.option("--slow", "reach", flag_value="slow", help="Also what takes minutes.")
@click.option(
    "--core", "reach", flag_value="core", help="Only the heart of it, in a quarter of a minute."
)
@click.option("--recheck", is_flag=True, help="Also asks cvc5 about every obligation.")
@click.option(
    "--export",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Writes every obligation as SMT-LIB 2 into DIR, which must be new or empty.",
)
def prove(
    names: tuple[str, ...],
    form: str,
    reach: str | None,
    recheck: bool,
    folder: Path | None,
) -> None:
    """Proves the theorems NAMES, or all of them, about the code of the specification.

    Exit codes: 0 every theorem came out as it says, 1 one did not, 2 wrong usage, 3 undetermined.
    """
    try:
        theorems = _select(names, reach)
    except UnknownTheoremError as error:
        raise click.UsageError(str(error)) from error
    if recheck and importlib.util.find_spec("cvc5") is None:
        raise click.UsageError("--recheck needs cvc5; pip install 'schedcheck[proofs]'")
    try:
        confirm = Recheck() if recheck else None
        with kept_interrupts():
            report = _prove_and_export(theorems, confirm, folder, reach == "slow")
    except ExportError as error:
        raise click.UsageError(f"--export: {error}") from error
    except KeyboardInterrupt:
        click.echo("schedcheck: Ctrl-C", err=True)
        sys.exit(EXIT_CODES["undetermined"])
    click.echo(report.to_json() if form == "json" else report.to_text())
    sys.exit(EXIT_CODES[report.verdict])


def _select(names: tuple[str, ...], reach: str | None) -> list[Theorem]:
    if reach != "core":
        return select_theorems(names, with_slow=reach == "slow")
    if names:
        raise click.UsageError("--core is a choice of its own; leave out NAMES")
    return select_core()


def _prove_and_export(
    theorems: list[Theorem], confirm: Recheck | None, folder: Path | None, with_slow: bool
) -> Report:
    if folder is None:
        return _prove(theorems, confirm, None, with_slow)
    with open_export(folder) as export:
        return _prove(theorems, confirm, export, with_slow)


def _prove(
    theorems: list[Theorem], confirm: Recheck | None, export: Export | None, with_slow: bool
) -> Report:
    sinks = [sink for sink in (export, confirm) if sink is not None]

    def hand_out(obligation: Obligation) -> None:
        for sink in sinks:
            sink(obligation)

    started, outcomes = time.monotonic(), list[Outcome]()
    is_interrupted = False
    try:
        with Progress(Console(stderr=True)) as progress, confirm or contextlib.nullcontext():
            outcomes.extend(
                prove_theorems(theorems, with_slow=with_slow, export=hand_out, say=progress.say)
            )
    except KeyboardInterrupt:
        is_interrupted = True
        if export is not None:
            export.is_whole = False
    proved = {outcome.theorem.name for outcome in outcomes}
    left = [each.name for each in theorems if each.name not in proved] if is_interrupted else []
    return Report(tuple(outcomes), time.monotonic() - started, confirm, export, tuple(left))
