"""The command line. Each command finds its input, lets others work, and prints one report.

Nothing heavy is imported before a command runs, so that `schedcheck --help` answers at once.
"""

# ruff: noqa: PLC0415  (the imports that wait)

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from checkers.errors import HarnessError
from checkers.reporting import make_console, report_checks

if TYPE_CHECKING:
    from checkers.configs import Setting
    from checkers.progress import Progress
    from checkers.report import Check

EPILOG = (
    "Exit codes: 0 holds, 1 finding, 2 usage or a fault of schedcheck, "
    "3 undetermined (a budget ended first)."
)


class _Group(click.Group):
    """Reports our own faults as one sentence, and every unusable command line with exit code 2."""

    def invoke(self, ctx: click.Context) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                # A character that the terminal does not know is no reason to fail.
                stream.reconfigure(errors="backslashreplace")
        try:
            return super().invoke(ctx)
        except HarnessError as error:
            click.echo(f"schedcheck: {error}", err=True)
            sys.exit(2)
        except MemoryError:
            click.echo("schedcheck: out of memory; choose a smaller configuration", err=True)
            sys.exit(2)
        except KeyboardInterrupt:
            click.echo("schedcheck: Ctrl-C", err=True)
            sys.exit(3)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception:  # noqa: BLE001  (a bug of ours is no finding)
            traceback.print_exc()
            click.echo("schedcheck: this is a bug of schedcheck; please report it", err=True)
            sys.exit(2)


@click.group(cls=_Group, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="schedcheck")
def main() -> None:
    """Checks the scheduler of an LLM engine against an executable specification.

    An ENGINE is `fast` (our own), `spec` (the specification itself), or module:attribute: any
    callable that builds a scheduler from a SchedulerConfig.
    """


def _options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


FORMAT = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "junit"]),
    default="text",
    help="How to print the report.",
)
OUT = click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("counterexamples"),
    show_default=True,
    help="Where counterexamples are written.",
)
ENGINE_TIME = click.option(
    "--engine-timeout",
    type=click.FloatRange(min=0.05),
    default=10.0,
    show_default=True,
    help="Seconds after which a call of the engine is a hang.",
)
CONFIG = click.option(
    "--config",
    "configs",
    multiple=True,
    help="A named setting (`schedcheck list settings`), or a .toml or .json file; may be repeated.",
)
CHANGE = click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Changes a field of the scheduler or its environment in every setting; may be repeated.",
)
CLAIM = click.option(
    "--claim",
    "claims",
    multiple=True,
    help="Also checks an invariant that does not hold everywhere.",
)
TIME = click.option(
    "--time-budget",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Seconds after which to stop; 0 is no limit.",
)
SEED = click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
LENGTH = click.option(
    "--length",
    type=click.IntRange(min=1),
    default=150,
    show_default=True,
    help="Actions in a walk.",
)


def _walks(default: int) -> Any:
    return click.option(
        "--walks",
        type=click.IntRange(min=1),
        default=default,
        show_default=True,
        help="Walks per setting.",
    )


@main.command()
@click.argument("engine", default="fast")
@click.option(
    "--recordings",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    help="Recorded runs of a real engine, files or folders: held against the spec, and the "
    "engine led along them.",
)
@_options(CONFIG, SEED, _walks(30), ENGINE_TIME, OUT, FORMAT)
def verify(
    engine: str,
    *,
    recordings: tuple[Path, ...],
    configs: tuple[str, ...],
    seed: int,
    walks: int,
    engine_timeout: float,
    out: Path,
    form: str,
) -> NoReturn:
    """The main job: explores the spec, leads ENGINE beside it, and validates recorded runs."""

    def checks(progress: Progress) -> Iterator[Check]:
        from checkers import commands, commands_recordings
        from checkers.beside import Walks, walking_beside
        from checkers.engines import load_engine
        from checkers.explore import Budget
        from checkers.mixed import PER_ROUND
        from checkers.search import Plan

        tested = load_engine(engine, engine_timeout)
        paths = commands_recordings.find_recordings(recordings) if recordings else []
        used = _settings(configs, "verify")
        walked = [s for s in used if configs or "search" in s.used_by]
        plan = Plan(num_walks=walks, seed=seed, num_mixed=0 if configs else PER_ROUND)
        with walking_beside(Walks(engine, engine_timeout, walked, plan, out)) as beside:
            yield from commands_recordings.validate_recordings(paths, progress)
            yield from commands_recordings.lockstep_runs(tested, paths, progress, out)
            if not tested.is_spec:
                for setting in used:
                    if "lead" in setting.used_by:
                        yield commands.explore(tested, setting, Budget(), progress, out)
            explored = [setting for setting in used if "explore" in setting.used_by]
            yield from commands.explore_until(
                lambda: beside.has_found(progress), explored, progress, out
            )
            yield beside.result(progress)

    report_checks("verify", checks, form, _describe_scope(configs, recordings))


def _describe_scope(configs: tuple[str, ...], recordings: tuple[Path, ...]) -> str:
    """What `verify` looks at, and what it does not."""
    unexplored = [
        f"--config {config}"
        for config, setting in zip(configs, _settings(configs, "verify"), strict=False)
        if "explore" not in setting.used_by
    ]
    scope = "the spec is explored in small settings only, and walks are samples"
    if unexplored:
        scope = "walks are samples; to explore, too: schedcheck explore " + " ".join(unexplored)
    return scope if recordings else f"{scope}; no recordings were given (--recordings)"


@main.command()
@click.option("--engine", default="spec", show_default=True, help="What is explored.")
@click.option(
    "--max-states",
    type=click.IntRange(min=0),
    default=0,
    help="Unique states after which to stop; 0 is no limit.",
)
@click.option(
    "--states-only",
    is_flag=True,
    help="Judges every state, but only the first transition into each: faster (spec only).",
)
@_options(CONFIG, CHANGE, CLAIM, TIME, ENGINE_TIME, OUT, FORMAT)
def explore(
    engine: str,
    *,
    max_states: int,
    states_only: bool,
    configs: tuple[str, ...],
    changes: tuple[str, ...],
    claims: tuple[str, ...],
    time_budget: float,
    engine_timeout: float,
    out: Path,
    form: str,
) -> NoReturn:
    """Explores breadth first, every state, every transition; a breach found is a shortest one."""

    def checks(progress: Progress) -> Iterator[Check]:
        from checkers import commands
        from checkers.engines import load_engine
        from checkers.explore import Budget

        tested = load_engine(engine, engine_timeout)
        for setting in _settings(configs, "explore", changes, claims):
            budget = Budget(seconds=time_budget, states=max_states, states_only=states_only)
            yield commands.explore(tested, setting, budget, progress, out)

    report_checks("explore", checks, form, "complete for these settings only")


@main.command()
@click.option("--engine", default="fast", show_default=True, help="What is walked.")
@_options(CONFIG, CHANGE, CLAIM, SEED, _walks(80), LENGTH, TIME, ENGINE_TIME, OUT, FORMAT)
def search(
    engine: str,
    *,
    configs: tuple[str, ...],
    changes: tuple[str, ...],
    claims: tuple[str, ...],
    seed: int,
    walks: int,
    length: int,
    time_budget: float,
    engine_timeout: float,
    out: Path,
    form: str,
) -> NoReturn:
    """Walks at random in lockstep with the spec; a failing walk is shrunk."""

    def checks(progress: Progress) -> Iterator[Check]:
        from checkers import commands
        from checkers.engines import load_engine
        from checkers.mixed import PER_ROUND
        from checkers.search import Plan

        is_chosen = configs or changes or claims
        plan = Plan(
            num_walks=walks,
            num_mixed=0 if is_chosen else PER_ROUND,
            length=length,
            seed=seed,
            seconds=time_budget,
        )
        settings = _settings(configs, "search", changes, claims)
        yield commands.walk(load_engine(engine, engine_timeout), settings, plan, progress, out)

    report_checks(
        "search", checks, form, "walks are samples: they show presence of faults, not absence"
    )


@main.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--engine", default="fast", show_default=True, help="What is led along.")
@_options(ENGINE_TIME, OUT, FORMAT)
def lockstep(
    runs: tuple[Path, ...], engine: str, engine_timeout: float, out: Path, form: str
) -> NoReturn:
    """Leads an engine, beside the spec, through the actions of recorded RUNS or counterexamples."""

    def checks(progress: Progress) -> Iterator[Check]:
        from checkers import commands_recordings
        from checkers.engines import load_engine

        tested = load_engine(engine, engine_timeout)
        paths = commands_recordings.find_recordings(runs)
        yield from commands_recordings.lockstep_runs(tested, paths, progress, out)

    report_checks("lockstep", checks, form, "for these runs only")


@main.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--exact-ids",
    is_flag=True,
    help="Compares block ids and the free queue's order by number, too.",
)
@click.option("--dialect", help="Overrides the dialect that the file's engine and version name.")
@FORMAT
def validate(runs: tuple[Path, ...], exact_ids: bool, dialect: str | None, form: str) -> NoReturn:
    """Holds recorded RUNS of a real engine (files or folders) against the spec."""

    def checks(progress: Progress) -> Iterator[Check]:
        from checkers import commands_recordings

        yield from commands_recordings.validate_recordings(
            commands_recordings.find_recordings(runs),
            progress,
            dialect=dialect,
            exact_ids=exact_ids,
        )

    report_checks("validate", checks, form, "for these runs only")


@main.command()
@click.argument("diff", required=False)
@click.option("--base", help="The revision to compare with, instead of a DIFF.")
@click.option("--head", help="The revision to check; without it, the working tree.")
@click.option("--repo", type=click.Path(path_type=Path), help="The checkout; else the one here.")
@click.option("--engine", default="fast", show_default=True, help="Whose sources change.")
@click.option(
    "--no-lockstep",
    is_flag=True,
    help="For an engine that differs from the spec on purpose: invariants and base only.",
)
@click.option(
    "--time-budget",
    type=click.FloatRange(min=0, min_open=True),
    default=None,
    help="Seconds, after the imports. Default: 60, and up to 180 more for a change with which "
    "nothing is wrong so far, if it takes that to walk eight rounds.",
)
@click.option(
    "--walks",
    type=click.IntRange(min=0),
    default=0,
    help="Walks per setting; 0 is as many as there is time for.",
)
@click.option(
    "--memory-limit",
    type=click.IntRange(min=0),
    default=2048,
    show_default=True,
    metavar="MIB",
    help="Of each side; 0 is no limit.",
)
@click.option(
    "--engine-timeout",
    type=click.FloatRange(min=0.05),
    default=2.0,
    show_default=True,
    help="Seconds after which a call of the engine is a hang.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "markdown"]),
    default="text",
    help="How to print the report.",
)
@_options(CONFIG, CHANGE, CLAIM, SEED, LENGTH, OUT)
def patch(
    diff: str | None,
    *,
    base: str | None,
    head: str | None,
    repo: Path | None,
    engine: str,
    no_lockstep: bool,
    time_budget: float | None,
    walks: int,
    memory_limit: int,
    engine_timeout: float,
    form: str,
    configs: tuple[str, ...],
    changes: tuple[str, ...],
    claims: tuple[str, ...],
    seed: int,
    length: int,
    out: Path,
) -> NoReturn:
    """What a change breaks that was not broken: runs an engine with and without DIFF (or `-`)."""

    def checks(progress: Progress) -> Iterator[Check]:
        from checkers.mixed import PER_ROUND
        from checkers.patch.command import Change, check_patch
        from checkers.patch.comparison import TimeBudget
        from checkers.patch.protocol import Job

        settings = _settings(configs, "search", changes, claims)
        if not configs:
            settings += [s for s in _settings((), "lead", changes, claims) if s not in settings]
        job = Job(
            engine=engine,
            settings=tuple(settings),
            seed=seed,
            num_walks=walks,
            num_mixed=0 if configs or changes or claims else PER_ROUND,
            length=length,
            lockstep=not no_lockstep,
            engine_timeout=engine_timeout,
            memory_mib=memory_limit,
        )
        change = Change(diff=diff, base=base, head=head, repo=repo)
        budget = TimeBudget() if time_budget is None else TimeBudget(time_budget, 0.0)
        yield from check_patch(change, job, budget, progress, out)

    scope = "both sides did the same walks, which are samples; what was not reached is not known"
    report_checks("patch", checks, form, scope)


@main.command()
@click.argument("names", nargs=-1)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Processes that share the work.",
)
@click.option("--list", "is_list", is_flag=True, help="Names the bugs, and plants none.")
@click.option(
    "--by",
    metavar="CHECKER[,CHECKER…]|all",
    default="",
    help="Asks these checkers about each bug, any rule will do; else a bug's own rule must notice.",
)
@click.option(
    "--systematic",
    type=click.Choice(["spec", "engine", "both"]),
    is_flag=False,
    flag_value="both",
    help="Instead of known bugs, every small edit of the source of the spec, or of our engine.",
)
@click.option("--file", "files", multiple=True, help="Of --systematic: edits of these files only.")
@click.option(
    "--sample",
    type=click.IntRange(min=0),
    default=0,
    help="Of --systematic: so many of the edits; 0 is all.",
)
@_options(CONFIG, SEED, TIME, FORMAT)
def mutate(
    names: tuple[str, ...],
    *,
    workers: int,
    is_list: bool,
    by: str,
    systematic: str | None,
    files: tuple[str, ...],
    sample: int,
    configs: tuple[str, ...],
    seed: int,
    time_budget: float,
    form: str,
) -> NoReturn:
    """Plants known bugs in our engine, all or NAMES, and says whether the checkers see each."""
    from checkers.mutations.command import check_options, list_mutations

    if is_list:
        console = make_console()
        for line in list_mutations(names):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        sys.exit(0)

    check_options(names, by, systematic, files or configs or sample or seed or time_budget)

    def checks(progress: Progress) -> Iterator[Check]:
        if by:
            from checkers.mutations.matrix import choose_checkers, mutate_by

            yield from mutate_by(names, choose_checkers(by), workers, progress)
            return
        if systematic:
            from checkers.mutations.systematic.command import Choice, choose_settings, mutate_all

            choice = Choice(side=systematic, files=files, num_sampled=sample, seed=seed)
            settings = choose_settings(configs)
            yield from mutate_all(choice, settings, workers, time_budget, progress)
            return
        from checkers.mutations.command import mutate as plant

        yield from plant(names, workers, progress)

    report_checks(
        "mutate", checks, form, "these bugs are seen; which others would escape is not known"
    )


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--engine", help="Another engine than the one that the file names.")
@_options(ENGINE_TIME, FORMAT)
def replay(file: Path, engine: str | None, engine_timeout: float, form: str) -> NoReturn:
    """Runs the counterexample in FILE again; exit code 1 if a rule still breaks."""

    def checks(progress: Progress) -> Iterator[Check]:
        from checkers import commands
        from checkers.engines import load_engine

        tested = None if engine is None else load_engine(engine, engine_timeout)
        yield commands.replay(file, tested)

    report_checks("replay", checks, form, "for this run only")


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@FORMAT
def show(file: Path, form: str) -> None:
    """Shows the counterexample in FILE as a table, without running anything."""
    from checkers import commands
    from checkers.report import render_check

    render_check(commands.show(file), form, make_console())


@main.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def prove(arguments: tuple[str, ...]) -> None:
    """Proves theorems about the code of the spec, for all numbers (`schedcheck prove --help`)."""
    _hand_over("proofs.cli", "prove", arguments)


@main.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def conform(arguments: tuple[str, ...]) -> None:
    """Shows that a model runner computes the same bits however it is scheduled (see --help)."""
    _hand_over("gpu_conformance.cli", "conform", arguments)


def _hand_over(module: str, name: str, arguments: tuple[str, ...]) -> None:
    """Runs a command of another package, found by name as engines are: checks need none of it."""
    import importlib

    command = getattr(importlib.import_module(module), name)
    command.main(list(arguments), prog_name=f"schedcheck {name}")


@main.command("list")
@click.argument(
    "what", type=click.Choice(["settings", "invariants", "witnesses", "engines", "dialects"])
)
def list_(what: str) -> None:
    """Lists what there is: names and what they stand for."""
    from checkers import commands

    console = make_console()
    for name, text in commands.list_everything(what):
        console.print(f"{name:<36} {text}", highlight=False, markup=False, soft_wrap=True)


def _settings(
    configs: tuple[str, ...],
    command: str,
    changes: tuple[str, ...] = (),
    claims: tuple[str, ...] = (),
) -> list[Setting]:
    """The settings that are asked for, or else those that a command uses."""
    from checkers.configs import change_setting, load_settings
    from checkers.mixed import find_setting

    if configs:
        settings = [find_setting(config) for config in configs]
    else:
        settings = [s for s in load_settings().values() if command in s.used_by]
    return [change_setting(setting, changes, claims) for setting in settings]
