"""Liveness: while requests are unfinished and steps return, somebody gets a token or ends.

A *quiet* action plans a step or takes one out of flight, and delivers nothing: no token, no end. A
setting has finitely many states, so a run that stays quiet for ever comes back to a state: it is a
*lasso*, a way in and a loop of quiet actions. Entry points: `QuietGraph`, which finds one among the
states of an exploration, `drain`, which looks for one of any engine, and `run_lasso`, which runs
one again and judges it.

What is assumed of a fair run: steps in flight return, and the engine plans again when it may.
Every loop of quiet actions does both, for at most `max_in_flight` steps are in flight. So every
cycle is fair, and the strongly connected components need not be computed: taking away, again and
again, what has no quiet successor leaves what can stay quiet for ever (Fisler, Fraer, Kamhi, Vardi,
Yang: Is there a best symbolic cycle-detection algorithm?, TACAS 2001).

What is not part of a loop: arrivals, aborts, and whatever else comes from outside. Clients that
come and go for ever may starve a request of low priority, and that is what priorities ask for. Nor
is a state in which the engine has to wait for others: a pause ends, and a grammar gets compiled.

Why canonical names lose nothing and add nothing: neither "nobody gets a token" nor the assumption
names a request, so both are the same under other names. A cycle of canonical states is a run that
comes back to its state with its requests in each other's places; nobody comes or goes in it, so
the same run, as often as that takes, brings everybody back to its own place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
from attrs import define, field, frozen

from checkers.engines import Engine, hang_alarms
from checkers.errors import EngineFault
from checkers.run import Breach, Run
from checkers.trial import Rules, Trial, make_possible, run_trial
from spec.actions import Action, AddRequest, Schedule, UpdateFromOutput
from spec.gates import num_blocks_of_whole
from spec.interface import EngineCoreOutput, Observation, SchedulerConfig
from spec.model import Model

NAME = "somebody_gets_a_token"
RULE = "While requests are unfinished and steps return, somebody gets a token or ends."

Results = dict[int, list[EngineCoreOutput]] | None


def is_quiet(action: Action, results: Results) -> bool:
    """Whether an action plans or returns a step, and delivers nothing."""
    if type(action) is Schedule:
        return True
    if type(action) is not UpdateFromOutput:
        return False
    return not results or not any(
        output.new_token_ids or output.finish_reason is not None
        for outputs in results.values()
        for output in outputs
    )


@frozen
class Lasso:
    """A run that goes on for ever: a way in, then a loop."""

    way_in: tuple[Action, ...]
    loop: tuple[Action, ...]
    """Brings everybody back to the state that it starts from."""

    @property
    def actions(self) -> tuple[Action, ...]:
        """The way in, and the loop once."""
        return self.way_in + self.loop


# ---- among the states of an exploration ----------------------------------------------------------


@define
class QuietGraph:
    """The quiet transitions of an exploration; a state is its place in the order of discovery."""

    successors: dict[int, list[tuple[int, int]]] = field(factory=dict)
    """By state, in the order of discovery: the numbers of quiet actions, and where they lead."""

    def add(self, state: int, number: int, after: int) -> None:
        """Takes a quiet transition."""
        self.successors.setdefault(state, []).append((number, after))

    def find_loop(self) -> tuple[int, list[int]] | None:
        """The first state on a cycle, and the actions of a shortest cycle through it."""
        endless = self._find_endless()
        for state in endless:
            numbers = self._find_way_back(state, endless)
            if numbers is not None:
                return state, numbers
        return None

    def _find_endless(self) -> dict[int, None]:
        """The states from which a quiet run may go on for ever, in the order of discovery."""
        predecessors: dict[int, list[int]] = {}
        num_left = {state: len(edges) for state, edges in self.successors.items()}
        for state, edges in self.successors.items():
            for _, after in edges:
                predecessors.setdefault(after, []).append(state)
        ends = [state for state in predecessors if state not in num_left]
        while ends:
            for state in predecessors.get(ends.pop(), ()):
                num_left[state] -= 1
                if num_left[state] == 0:
                    ends.append(state)
        return {state: None for state, count in num_left.items() if count > 0}

    def _find_way_back(self, start: int, endless: dict[int, None]) -> list[int] | None:
        """The actions of a shortest cycle through a state, breadth first; None if there is none."""
        ways: dict[int, list[int]] = {start: []}
        level = deque([start])
        while level:
            state = level.popleft()
            for number, after in self.successors[state]:
                if after == start:
                    return [*ways[state], number]
                if after in endless and after not in ways:
                    ways[after] = [*ways[state], number]
                    level.append(after)
        return None


# ---- of any engine -------------------------------------------------------------------------------


def drain(rules: Rules, engine: Engine, path: Sequence[Action]) -> Lasso | None:
    """Leads an engine along a path, then lets steps alone happen until somebody gets a token.

    Returns the lasso if what is seen of the engine comes back first, and if it goes round for more
    engine steps than patience asks for. An engine that does not show what it waits for may look
    like one that waits for ever; one that comes back to nothing is not accused. Each step is
    planned as early as may be.
    """
    run = Run(rules.config, engine.build(rules.config, is_trusted=True), with_worker=False)
    for action in path:
        run.step(action)
    if run.model.is_waited_for:
        return None
    actions: list[Action] = []
    states = [recurring(run.seen, run.model)]
    patience = compute_patience(run.model)
    while run.model.live and sum(type(action) is Schedule for action in actions) <= patience:
        action = next_step(run.model, rules)
        if not is_quiet(action, run.step(action).outcome.results):
            return None
        actions.append(action)
        state = recurring(run.seen, run.model)
        if state in states:
            start = states.index(state)
            lasso = Lasso((*path, *actions[:start]), tuple(actions[start:]))
            return lasso if _goes_round(rules, engine, lasso) else None
        states.append(state)
    return None


def next_step(model: Model, rules: Rules) -> Action:
    """Plans a step if that may be, else lets the oldest return."""
    if len(model.in_flight) < rules.max_in_flight:
        return Schedule()
    return UpdateFromOutput({name: [rules.default_token_id] for name in model.live_samplers()})


def compute_patience(model: Model) -> int:
    """The engine steps that may pass: one for each token of the living, and those in flight.

    Whoever is served first gains a token in each step, so it needs no more of them.
    """
    return sum(len(live.token_ids) for live in model.live.values()) + len(model.in_flight)


def recurring(seen: Observation, model: Model) -> Any:
    """What is seen of a state, and what is in flight, but for what only grows or is only a name.

    That is `num_preemptions`, the names of blocks, and who has ended since the last step.
    """
    names: dict[int, int] = {}
    for table in seen.block_tables:
        for block_id in table:
            names.setdefault(block_id, len(names))
    for block_id in seen.free_block_ids:
        if block_id in seen.cached_block_ids:
            names.setdefault(block_id, len(names))
    requests = {
        name: attrs.evolve(
            request,
            num_preemptions=None,
            block_ids=[names[block_id] for block_id in request.block_ids],
        )
        for name, request in seen.requests.items()
    }
    free = [names.get(block_id, -1) for block_id in seen.free_block_ids]
    contents = {names.get(block_id): text for block_id, text in (seen.block_contents or {}).items()}
    in_flight = [
        (dict(step.output.num_scheduled_tokens), step.voided, step.dropped)
        for step in model.in_flight
    ]
    kept = [
        attrs.evolve(gone, block_ids=[names[block_id] for block_id in gone.block_ids])
        for gone in seen.retained
    ]
    queues = list(seen.running), list(seen.waiting)
    # Copies: an engine may go on using what it has shown.
    loads = dict(seen.deferred_loads), list(model.loads)
    return (*queues, requests, free, contents, in_flight, kept, loads)


# ---- running one again ---------------------------------------------------------------------------


def run_lasso(rules: Rules, engine: Engine, lasso: Lasso) -> Trial:
    """Runs the way in and the loop once; if no rule breaks on the way, the loop is judged."""
    trial = run_trial(rules, engine, lasso.actions)
    with hang_alarms():
        is_endless = not trial.breaches and _goes_round(rules, engine, lasso)
    if is_endless:
        evidence = tuple(_explain(rules.config, trial, len(lasso.way_in)))
        trial.breaches = [Breach(NAME, RULE, evidence, "liveness")]
    return trial


def _goes_round(rules: Rules, engine: Engine, lasso: Lasso) -> bool:
    """Whether the loop stays quiet and comes back, more often than patience asks for."""
    try:
        run = Run(rules.config, engine.build(rules.config), with_worker=False)
        is_there = all(_is_taken(run, rules, action) for action in lasso.way_in)
        if not is_there or run.model.is_waited_for:
            return False
        start = recurring(run.seen, run.model)
        for _ in range(compute_patience(run.model) + 1):
            if not all(_is_taken(run, rules, a, must_be_quiet=True) for a in lasso.loop):
                return False
            if recurring(run.seen, run.model) != start:
                return False
    except EngineFault:
        return False  # It ends after all; that it fails is for another rule to say.
    return bool(run.model.live)


def _is_taken(run: Run, rules: Rules, action: Action, *, must_be_quiet: bool = False) -> bool:
    """Takes an action if it can happen as it is; whether it did, and was quiet where it must be."""
    if make_possible(run.model, action, rules) != action:
        return False
    results = run.step(action).outcome.results
    return not must_be_quiet or is_quiet(action, results)


def _explain(config: SchedulerConfig, trial: Trial, start: int) -> Iterator[str]:
    """What the loop does, and who can never be served."""
    outputs = [step.outcome.output for step in trial.steps[start:] if step.outcome is not None]
    steps = [output for output in outputs if output is not None]
    num_tokens = sum(output.total_num_scheduled_tokens for output in steps)
    num_preemptions = sum(len(output.preempted_req_ids) for output in steps)
    seen = trial.steps[-1].seen
    unfinished = [] if seen is None else [*seen.running, *seen.waiting]
    yield (
        f"the loop comes back to where it began after {_count(len(steps), 'engine step')}, "
        f"{_count(num_tokens, 'computed token')} and {_count(num_preemptions, 'preemption')}, "
        f"however unfinished are {', '.join(unfinished)}"
    )
    arrivals = [action.request for action in trial.actions if isinstance(action, AddRequest)]
    for new in arrivals:
        num_blocks = num_blocks_of_whole(config, new)
        if new.request_id in unfinished and num_blocks > config.num_blocks:
            yield (
                f"{new.request_id} may grow to {_count(num_blocks, 'block')}, however the pool has "
                f"{config.num_blocks}, so no scheduler can serve it to its end"
            )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
