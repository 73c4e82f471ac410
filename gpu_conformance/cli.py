"""The command `conform`: a model runner computes the same bits however it is scheduled.

Entry point: `conform`, which the main command line adds to its own commands. torch is imported when
there is something to compute.
"""

# ruff: noqa: PLC0415  (the imports that wait)

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from checkers.cli import EPILOG, FORMAT
from checkers.errors import HarnessError
from checkers.reporting import report_checks

if TYPE_CHECKING:
    from checkers.progress import Progress
    from checkers.report import Check

SCOPE = "for these requests, schedules and this model on this machine; bits, not what they mean"


@click.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:1.")
@click.option(
    "--backend",
    "backends",
    multiple=True,
    help="tile, exact, triton or plain, or module:attribute: any runner, of which tokens are "
    "compared; may be repeated. Default: all that the device has.",
)
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    type=click.Choice(["float32", "bfloat16"]),
    help="May be repeated. Default: all that a backend has.",
)
@click.option(
    "--model",
    default="tiny",
    show_default=True,
    help="A folder of Hugging Face, a GGUF file, or a tiny one of random weights.",
)
@click.option(
    "--axis",
    "axes",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Only this axis, or this value of it; may be repeated.",
)
@click.option("--prompt", default="", help="Computes this text, with a GGUF model's tokenizer.")
@click.option("--engine", default="fast", show_default=True, help="Whose schedules are run.")
@click.option("--bugs", is_flag=True, help="Plants known bugs in the runner, one after the other.")
@click.option("--list", "is_list", is_flag=True, help="Names axes and bugs, and runs nothing.")
@FORMAT
def conform(
    device: str,
    *,
    backends: tuple[str, ...],
    dtypes: tuple[str, ...],
    model: str,
    axes: tuple[str, ...],
    prompt: str,
    engine: str,
    bugs: bool,
    is_list: bool,
    form: str,
) -> None:
    """Computes the same requests in many ways, and compares every row of logits and KV, bit by bit.

    What each request computes alone, its prompt in one step, is the baseline.
    """
    if importlib.util.find_spec("torch") is None:
        raise HarnessError("conform needs torch; pip install 'schedcheck[runner]'")
    if is_list:
        from gpu_conformance.command import list_everything

        for line in list_everything():
            click.echo(line)
        return

    def checks(progress: Progress) -> Iterator[Check]:
        from gpu_conformance.bug_command import catch_bugs
        from gpu_conformance.command import Order, conform_all

        order = Order(
            model=model,
            device=device,
            backends=backends,
            dtypes=dtypes,
            axes=axes,
            prompt=prompt,
            engine=engine,
        )
        yield from catch_bugs(order, progress) if bugs else conform_all(order, progress)

    report_checks("conform", checks, form, SCOPE)
