"""The verbs of the command line, each of which returns what it has to say.

Entry points: one function per command. They import nothing of an engine: it is found by name.
Printing is left to `checkers.report`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from checkers.configs import Setting, load_settings
from checkers.counterexample import (
    Counterexample,
    dumps,
    make_counterexample,
    read,
    rerun,
    write,
)
from checkers.engines import ENGINES, Engine, load_engine
from checkers.errors import HarnessError
from checkers.explore import Budget, Exploration, Explorer
from checkers.explore_engine import EngineExploration, EngineExplorer
from checkers.liveness import NAME, Lasso, run_lasso
from checkers.progress import Progress
from checkers.report import Check
from checkers.run import Verdict
from checkers.search import Plan, Search, make_rules, search
from checkers.trial import Trial, run_trial
from spec.actions import Action
from spec.dialects import DIALECTS
from spec.registry import INVARIANTS, WITNESSES


def explore(
    engine: Engine,
    setting: Setting,
    budget: Budget,
    progress: Progress,
    out: Path | None,
) -> Check:
    """Explores a setting breadth first: the spec itself, or an engine led along its states."""
    if budget.states_only and not engine.is_spec:
        raise HarnessError(
            f"--states-only is for the spec, {engine.name} is judged at every action; leave it out"
        )
    if engine.is_spec:
        return _explore_spec(engine, setting, budget, progress, out)
    return _explore_engine(engine, setting, budget, progress, out)


def explore_until(
    is_over: Callable[[], bool],
    settings: Sequence[Setting],
    progress: Progress,
    out: Path | None,
) -> Iterator[Check]:
    """Explores the spec in one setting after the other; once it is over, says which are left."""
    for number, setting in enumerate(settings):
        if is_over():
            names = ", ".join(left.name for left in settings[number:])
            yield Check(
                title=f"explore  spec  {len(settings) - number} settings are left",
                verdict="undetermined",
                lines=(make_line("left", f"{names}, since the walks have found something"),),
                facts={"left": [left.name for left in settings[number:]]},
            )
            return
        yield explore(load_engine("spec"), setting, Budget(), progress, out)


def _explore_spec(
    engine: Engine, setting: Setting, budget: Budget, progress: Progress, out: Path | None
) -> Check:
    title = f"explore  spec  {setting.name}  {describe_setting(setting)}"
    explorer = Explorer(setting, judge_all=not budget.states_only)

    def on_level(found: Exploration, width: int) -> None:
        progress.say(
            f"explore {setting.name}: depth {found.depth}, {len(explorer.parents):,} states, "
            f"{width:,} on this level"
        )

    found = explorer.run(budget, on_level)
    broken = found.breaches[0].name if found.breaches else None
    example = _find_example(engine, setting, found.actions, broken, found.lasso)
    rate = _rate(found.num_unique, found.cpu_s)
    path, unwritten = try_to_write(example, out)
    return Check(
        title=title,
        verdict=found.verdict,
        lines=(
            make_line("states", _describe_states(found)),
            make_line(
                "always",
                _describe_invariants(len(found.invariants), found.verdict, bool(found.breaches))
                + ("; those of transitions not on all of them" if budget.states_only else ""),
            ),
            make_line("sometimes", _describe_witnesses(found.witnesses, setting.witnesses)),
            make_line("liveness", _describe_liveness(found, is_broken=bool(found.breaches))),
            make_line("rate", f"{rate:,.0f} states per CPU second, {_describe_judged(found)}"),
        ),
        facts={**_facts(found), "states_per_cpu_s": round(rate), "invariants": found.invariants},
        findings=(
            *_findings(found.is_complete, setting, found.witnesses, found.num_unique),
            *unwritten,
        ),
        counterexample=example,
        path=path,
    )


def _explore_engine(
    engine: Engine, setting: Setting, budget: Budget, progress: Progress, out: Path | None
) -> Check:
    title = f"explore  {engine.name}  {setting.name}  {describe_setting(setting)}"
    rules = make_rules(engine, setting)
    explorer = EngineExplorer(rules, engine, setting.environment)

    def on_level(found: EngineExploration, width: int) -> None:
        progress.say(
            f"explore {setting.name} with {engine.name}: depth {found.depth}, "
            f"{len(explorer.known):,} states"
        )

    found = explorer.run(budget, on_level)
    example = _find_example(engine, setting, found.failing, None, found.lasso)
    findings = _findings(found.is_complete, setting, found.witnesses, found.num_unique)
    verdict: Verdict = "holds" if found.is_complete else "undetermined"
    if example is not None or findings:
        verdict = "violated"
    path, unwritten = try_to_write(example, out)
    return Check(
        title=title,
        verdict=verdict,
        lines=tuple(_describe_led(found, setting, len(rules.invariants), verdict)),
        facts={**_facts(found), "unobserved": sorted(found.unobserved)},
        findings=(*findings, *unwritten),
        counterexample=example,
        path=path,
    )


def _describe_led(
    found: EngineExploration, setting: Setting, num_invariants: int, verdict: Verdict
) -> Iterator[str]:
    yield make_line("states", _describe_states(found))
    yield make_line(
        "lockstep",
        "every action of every state of the spec, along one shortest path to it; "
        "what else the engine remembers of other paths is not covered",
    )
    num_checked = num_invariants - len(found.unobserved)
    yield make_line("always", _describe_invariants(num_checked, verdict, bool(found.failing)))
    yield from _describe_unobserved(found.unobserved)
    yield make_line("sometimes", _describe_witnesses(found.witnesses, setting.witnesses))
    yield make_line("liveness", _describe_liveness(found, is_broken=bool(found.failing)))


def walk(
    engine: Engine, settings: list[Setting], plan: Plan, progress: Progress, out: Path | None
) -> Check:
    """Walks at random through settings, in lockstep with the specification."""

    def on_walk(found: Search) -> None:
        progress.say(
            f"search {engine.name}: {found.num_walks:,} of "
            f"{plan.num_walks * (len(settings) + plan.num_mixed):,} "
            f"walks, {found.num_engine_steps:,} engine steps"
        )

    found = search(engine, settings, plan, on_walk)
    path, unwritten = try_to_write(found.counterexample, out)
    return Check(
        title=f"search  {engine.name}  {' '.join(found.settings)}  seed={plan.seed}",
        verdict=found.verdict,
        lines=tuple(_describe_search(engine, found)),
        facts={
            "settings": found.settings,
            "seed": plan.seed,
            "num_walks": found.num_walks,
            "num_mixed": found.num_mixed,
            "num_judged_walks": found.num_judged_walks,
            "num_actions": found.num_actions,
            "num_engine_steps": found.num_engine_steps,
            "engine_steps_per_cpu_s": round(_rate(found.num_engine_steps, found.cpu_s)),
            "witnesses": dict(found.witnesses),
            "unobserved": sorted(found.unobserved),
            "interrupted_by": found.interrupted_by,
        },
        findings=unwritten,
        counterexample=found.counterexample,
        path=path,
    )


def _describe_search(engine: Engine, found: Search) -> Iterator[str]:
    drawn = f" and {found.num_mixed:,} drawn at random" if found.plan.num_mixed else ""
    yield make_line(
        "walks",
        f"{found.num_walks:,} of up to {found.plan.length} actions "
        f"over {len(found.settings)} settings{drawn}, "
        f"{found.num_engine_steps:,} engine steps, "
        f"{_rate(found.num_engine_steps, found.cpu_s):,.0f} per CPU second",
    )
    beside = "no; this is the spec itself" if engine.is_spec else "after every action"
    yield make_line("lockstep", beside)
    num_invariants, num_judged = len(found.invariants), found.num_judged_walks
    yield make_line("always", f"{num_invariants} invariants on {num_judged:,} of the walks")
    yield make_line("sometimes", _describe_witnesses(found.witnesses, ()))
    yield from _describe_unobserved(found.unobserved)
    if found.interrupted_by:
        yield make_line("ended by", found.interrupted_by)


def _describe_unobserved(names: set[str]) -> Iterator[str]:
    if names:
        hidden = ", ".join(sorted(names))
        yield make_line("unchecked", f"for want of what the engine does not show: {hidden}")


def _rate(count: int, cpu_s: float) -> float:
    return count / cpu_s if cpu_s else 0.0


def replay(path: Path, engine: Engine | None) -> Check:
    """Runs a counterexample again, on the engine that it names or on another."""
    found = read(path)
    engine = engine or load_engine(found.engine)
    trial, again = rerun(found, engine)
    title = f"replay  {engine.name}  {path}"
    if again is None:
        lines = (
            make_line("actions", f"{len(trial.steps)} of {len(found.steps)} happened"),
            make_line("outcome", f"{found.breach.name} holds on this run"),
        )
        return Check(title=title, verdict="holds", lines=lines, facts={"reproduced": False})
    is_same = again.breach.name == found.breach.name
    outcome = (
        "fails as in the file"
        if is_same
        else f"fails otherwise than in the file ({found.breach.name})"
    )
    if engine.name == found.engine:
        outcome += _describe_sameness(found, again, path)
    return Check(
        title=title,
        verdict="violated",
        lines=(make_line("outcome", outcome),),
        facts={"reproduced": is_same},
        counterexample=again,
        path=path,
    )


def _describe_sameness(found: Counterexample, again: Counterexample, path: Path) -> str:
    if dumps(again) == path.read_text(encoding="utf-8"):
        return ", byte for byte"
    if again == found:
        return ", but for the lines of the traceback"
    return ", not byte for byte: the engine or the file has changed"


def show(path: Path) -> Check:
    """Shows a counterexample without running anything."""
    found = read(path)
    lines = (
        make_line(
            "found by",
            f"{found.found_by} on {found.engine}, setting {found.setting}, seed {found.seed}",
        ),
        make_line("dialect", found.dialect),
    )
    return Check(
        title=f"show  {path}", verdict="violated", lines=lines, counterexample=found, path=path
    )


def list_everything(what: str) -> Iterator[tuple[str, str]]:
    """Yields names and what they stand for."""
    if what == "settings":
        for name, setting in load_settings().items():
            yield name, f"{setting.about} ({', '.join(setting.used_by) or 'on request'})"
    elif what == "invariants":
        for name, rule in INVARIANTS.items():
            yield name, rule.rule + (" (a claim: only where asked for)" if rule.is_claim else "")
    elif what == "witnesses":
        for name, witness in WITNESSES.items():
            yield name, witness.rule
    elif what == "engines":
        yield from ENGINES.items()
        yield "module:attribute", "any callable that builds a scheduler from a SchedulerConfig"
    else:
        for name, fields in DIALECTS.items():
            yield name, ", ".join(f"{k}={v}" for k, v in fields.items()) or "the defaults"


# ---- shared --------------------------------------------------------------------------------------


def describe_setting(setting: Setting) -> str:
    """The bounds that matter, as `name=value`."""
    config = setting.scheduler
    parts = [
        f"{name}={getattr(config, name)}"
        for name in ("block_size", "num_blocks", "max_num_seqs", "max_num_batched_tokens")
    ]
    parts += [f"policy={config.policy}"] if config.policy != "fcfs" else []
    parts += (
        [f"max_in_flight={setting.environment.max_in_flight}"] if config.async_scheduling else []
    )
    return " ".join(parts)


def _make_counterexample(engine: Engine, setting: Setting, trial: Trial) -> Counterexample:
    """A run found breadth first, which nothing needs to shrink."""
    return make_counterexample(
        make_rules(engine, setting),
        engine,
        trial,
        setting=setting.name,
        dialect=setting.dialect,
        found_by="explore",
        is_shortest=True,
    )


def _find_example(
    engine: Engine,
    setting: Setting,
    failing: Sequence[Action],
    broken: str | None,
    lasso: Lasso | None,
) -> Counterexample | None:
    """What an exploration found: a run that breaks a rule (known by name, or any), or a loop."""
    if failing:
        trial = run_trial(make_rules(engine, setting), engine, failing)
        _expect_same_breach(broken, trial)
        return _make_counterexample(engine, setting, trial)
    return None if lasso is None else _make_looping_counterexample(engine, setting, lasso)


def _make_looping_counterexample(engine: Engine, setting: Setting, lasso: Lasso) -> Counterexample:
    """A way in and a loop, with what keeps the loop going."""
    trial = run_lasso(make_rules(engine, setting), engine, lasso)
    _expect_same_breach(NAME, trial)
    return make_counterexample(
        make_rules(engine, setting),
        engine,
        trial,
        setting=setting.name,
        dialect=setting.dialect,
        found_by="explore",
        loop_start=len(lasso.way_in),
    )


def _expect_same_breach(name: str | None, trial: Trial) -> None:
    """An explorer's finding that a plain run does not show would be our own fault."""
    if not trial.breaches or (name is not None and name not in {b.name for b in trial.breaches}):
        raise HarnessError(
            f"the exploration found {name or 'a breach'}, a plain run of the same actions does "
            "not; please report this: it is a fault of schedcheck, or an engine that is not "
            "deterministic"
        )


def try_to_write(
    found: Counterexample | None, out: Path | None
) -> tuple[Path | None, tuple[str, ...]]:
    """Returns where a counterexample was written; if it cannot be, the report alone holds it."""
    if found is None or out is None:
        return None, ()
    try:
        return write(found, out), ()
    except HarnessError as error:
        return None, (str(error),)


def make_line(name: str, text: str) -> str:
    """A line of a check: what it is about, then the text."""
    return f"{name:<11} {text}"


def _describe_states(found: Exploration | EngineExploration) -> str:
    text = f"{found.num_generated:,} generated, {found.num_unique:,} unique, depth {found.depth}, "
    return text + (
        "complete"
        if found.is_complete
        else f"not complete: {found.interrupted_by or _describe_end(found)}"
    )


def _describe_end(found: Exploration | EngineExploration) -> str:
    return "a rule broke" if found.lasso is None else "a loop was found"


def _describe_judged(found: Exploration) -> str:
    num_transitions = found.num_generated - 1
    if found.num_judged == num_transitions:
        return "all of their transitions judged"
    return f"every state judged, {found.num_judged:,} of {num_transitions:,} transitions judged"


def _describe_liveness(found: Exploration | EngineExploration, *, is_broken: bool) -> str:
    if is_broken:
        return "not checked: a rule broke"
    if found.lasso is not None:
        return "a loop in which nobody gets a token"
    if isinstance(found, Exploration):
        text = "no fair cycle without progress"
    else:
        text = "from each state somebody gets a token, if steps are planned as early as may be"
    return text + ("" if found.is_complete else ", as far as was looked")


def _describe_invariants(count: int, verdict: Verdict, is_broken: bool) -> str:
    if is_broken:
        return f"{count} invariants, one broke"
    return f"{count} of {count} invariants hold" + (" so far" if verdict == "undetermined" else "")


def _describe_witnesses(seen: Counter[str], wanted: Iterable[str]) -> str:
    wanted = tuple(wanted)
    counts = " · ".join(f"{name} {seen[name]:,}" for name in WITNESSES if seen[name])
    if not wanted:
        return counts or "nothing of note"
    return (
        f"{sum(seen[name] > 0 for name in wanted)} of {len(wanted)} wanted were reached: {counts}"
    )


def _findings(
    is_complete: bool, setting: Setting, witnesses: Counter[str], num_unique: int
) -> tuple[str, ...]:
    if not is_complete:
        return ()
    missing = [name for name in setting.witnesses if not witnesses[name]]
    findings = [f"witness {name} was never reached: {WITNESSES[name].rule}" for name in missing]
    if setting.num_states not in {None, num_unique}:
        findings.append(
            f"{num_unique:,} states were found, the setting says {setting.num_states:,}"
        )
    return tuple(findings)


def _facts(found: Exploration | EngineExploration) -> dict[str, object]:
    return {
        "num_generated": found.num_generated,
        "num_unique": found.num_unique,
        "depth": found.depth,
        "is_complete": found.is_complete,
        "interrupted_by": found.interrupted_by,
        "is_live": found.is_live,
        "num_by_action": dict(found.num_by_action),
        "witnesses": dict(found.witnesses),
        "cpu_s": round(found.cpu_s, 3),
    }
