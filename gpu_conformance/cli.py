"""The command `conform`: a model runner computes the same bits however it is scheduled.

Entry point: `conform`, which the main command line adds to its own commands. torch is imported when
there is something to compute.
"""

# ruff: noqa: PLC0415  (the imports that wait)

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from checkers.cli import EPILOG, FORMAT
from checkers.errors import HarnessError
from checkers.reporting import report_checks

if TYPE_CHECKING:
    from checkers.progress import Progress
    from checkers.report import Check

SCOPE = "for these requests, schedules and this model on this machine; bits, not what they mean"
WEAKER = "tokens only, weaker than bits"
TOKEN_SCOPE = f"for these requests, schedules and this model on this machine; {WEAKER}"
LIVE_SCOPE = (
    "for these requests, settings and this model on this machine; tokens, and log-probabilities "
    "within a tolerance: weaker than bits"
)


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
    "models",
    multiple=True,
    default=("tiny",),
    show_default="tiny",
    help="A folder of Hugging Face, a GGUF file, or a tiny one of random weights.",
)
@click.option(
    "--axis",
    "axes",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Only this axis, or this value of it; may be repeated.",
)
@click.option("--prompt", default=None, help="Computes this text, with a GGUF model's tokenizer.")
@click.option("--engine", default="fast", show_default=True, help="Whose schedules are run.")
@click.option(
    "--live",
    default="",
    metavar="ENGINE",
    help="A whole engine, in place of our runner: vllm, ours, or module:attribute. Tokens and "
    "log-probabilities are compared, which is weaker than bits.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    default=0.0,
    help="With --live: how far a log-probability may be off. Default: by number type.",
)
@click.option(
    "--engine-timeout",
    type=click.FloatRange(min=0.05),
    default=None,
    help="Seconds after which a runner that does not return from a step, or an engine of --live "
    "that does not answer, hangs. Default: 600.",
)
@click.option("--bugs", is_flag=True, help="Plants known bugs in the runner, one after the other.")
@click.option("--list", "is_list", is_flag=True, help="Names axes and bugs, and runs nothing.")
@FORMAT
def conform(
    device: str,
    *,
    backends: tuple[str, ...],
    dtypes: tuple[str, ...],
    models: tuple[str, ...],
    axes: tuple[str, ...],
    prompt: str | None,
    engine: str,
    live: str,
    tolerance: float,
    engine_timeout: float | None,
    bugs: bool,
    is_list: bool,
    form: str,
) -> None:
    """Computes the same requests in many ways, and compares every row of logits and KV, bit by bit.

    What each request computes alone, its prompt in one step, is the baseline.
    """
    if importlib.util.find_spec("torch") is None:
        raise HarnessError("conform needs torch; pip install 'schedcheck[runner]'")
    for option, value in (("--tolerance", tolerance), ("--engine-timeout", engine_timeout)):
        if value is not None and not math.isfinite(value):
            raise HarnessError(f"{option} {value} bounds nothing; name a number")
    if prompt == "":
        raise HarnessError("--prompt is empty; name a text, or leave it out")
    if is_list:
        _list_everything()
        return
    if len(models) > 1:
        raise HarnessError(f"one model is checked at a time; name one of {', '.join(models)}")
    shared: dict[str, Any] = {"model": models[0], "device": device, "dtypes": dtypes, "axes": axes}
    if engine_timeout is not None:
        shared["engine_timeout"] = engine_timeout
    if not live:
        if tolerance:
            raise HarnessError("--tolerance is for --live; of a runner every bit is compared")
        if bugs and (backends or axes or dtypes or prompt or engine != "fast" or engine_timeout):
            raise HarnessError(
                "--bugs chooses what it computes by itself; leave out --backend, --dtype, --axis, "
                "--engine, --engine-timeout and --prompt"
            )
        _conform(form, bugs, backends=backends, prompt=prompt or "", engine=engine, **shared)
    if backends or prompt or bugs or engine != "fast":
        raise HarnessError(
            "--live computes with an engine's own scheduler and runner; leave out --backend, "
            "--engine, --prompt and --bugs"
        )
    _conform_live(form, name=live, tolerance=tolerance, **shared)


def _list_everything() -> None:
    from gpu_conformance.command import list_everything

    for line in list_everything():
        click.echo(line)


def _conform(form: str, bugs: bool, **order: Any) -> NoReturn:
    def checks(progress: Progress) -> Iterator[Check]:
        if any(":" in backend for backend in order["backends"]):
            from gpu_conformance.apart import conform_apart

            yield from conform_apart(order, progress)
            return
        from gpu_conformance.bug_command import catch_bugs
        from gpu_conformance.command import Order, conform_all

        made = Order(**order)
        yield from catch_bugs(made, progress) if bugs else conform_all(made, progress)

    report_checks("conform", checks, form, _describe_scope)


def _describe_scope(checks: Sequence[Check]) -> str:
    """What was compared: bits, or tokens of runners that show none."""
    compared = [check.facts for check in checks if check.facts.get("num_tokens")]
    is_weaker = [not facts["num_rows"] for facts in compared if "num_rows" in facts]
    if not any(is_weaker):
        return SCOPE
    return TOKEN_SCOPE if all(is_weaker) else f"{SCOPE}; where no bits are shown, {WEAKER}"


def _conform_live(form: str, **order: Any) -> NoReturn:
    def checks(progress: Progress) -> Iterator[Check]:
        from gpu_conformance.live.command import LiveOrder, conform_live

        yield from conform_live(LiveOrder(**order), progress)

    report_checks("conform", checks, form, LIVE_SCOPE)
