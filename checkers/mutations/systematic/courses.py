"""What each setting has to show, and what must then be seen: a course, led along by a scheduler.

Entry points: `Courses`, which makes each course once, and `Course.lead`. A setting that can be seen
whole is taken by a tour of all its actions, any other by random walks. What the specification shows
is kept as a number for each action, so that a mutant is compared to it at the speed of a run.
"""

from __future__ import annotations

import random
from operator import attrgetter

import attrs
from attrs import define, field, frozen

from checkers.configs import Setting
from checkers.engines import Engine, hang_alarms, load_engine
from checkers.errors import EngineFault, HarnessError
from checkers.mutations.systematic.mutants import Patch, planted
from checkers.mutations.systematic.tour import Run, take_tour
from checkers.run import Judge, select_invariants
from checkers.run import Run as ObservedRun
from checkers.walk import draw_action
from spec.actions import Action
from spec.interface import Observation, RequestObservation
from spec.model import Model
from spec.scheduler import ReferenceScheduler
from spec.transition import Outcome

ENGINE_TIME_S = 2.0
"""Even on a busy machine no call of either scheduler takes so long."""
NUM_WALKS, LENGTH = 40, 120
WALKS_AS_STATES = 500
MAX_TOUR = 2500
"""States of a setting that is taken by a tour; a larger one is walked through."""
SUBJECTS = {"spec": "spec", "engine": "fast"}
"""The scheduler that the files of a side make, by its short name."""
get_shown = attrgetter(*[f.name for f in attrs.fields(RequestObservation) if f.name != "block_ids"])


@frozen
class Difference:
    """Where a scheduler first departs from a course."""

    actions: tuple[Action, ...]
    """A run whose last action shows it."""
    rule: str
    """What breaks there: an invariant, `same_as_spec`, or a fault of an engine."""


@define
class Course:
    """Runs through a setting, and what is seen after each action of theirs."""

    setting: Setting
    runs: list[Run]
    num_states: int
    """All of the setting's if this is a tour; 0 if it is not."""
    expected: list[list[int]] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.expected = [self._look(run) for run in self.runs]
        difference = self.lead("engine")
        if difference is not None:
            raise HarnessError(
                f"{self.setting.name}: our engine breaks {difference.rule} as it is; "
                "check it first, with `schedcheck verify`"
            )

    @property
    def num_actions(self) -> int:
        """Of all runs."""
        return sum(map(len, self.runs))

    def lead(self, side: str) -> Difference | None:
        """Leads the scheduler of a side along all runs; returns where it departs from them."""
        engine = load_engine(SUBJECTS[side], ENGINE_TIME_S)
        with hang_alarms():
            for actions, expected in zip(self.runs, self.expected, strict=True):
                num_same = self._count_same(engine, actions, expected)
                if num_same < len(actions):
                    failing = actions[: num_same + 1]
                    return Difference(tuple(failing), self._name_rule(engine, failing))
        return None

    def reaches(self, side: str, wire: Patch) -> bool:
        """Whether a run reaches the statement in whose place a wire is stretched."""
        engine = load_engine(SUBJECTS[side], ENGINE_TIME_S)
        with planted(wire):
            return any(
                self._count_same(engine, actions, expected) < len(actions)
                for actions, expected in zip(self.runs, self.expected, strict=True)
            )

    def _count_same(self, engine: Engine, actions: Run, expected: list[int]) -> int:
        """How many actions of a run show what they should."""
        num_same = 0
        try:
            model = Model(None, engine.build(self.setting.scheduler, is_trusted=True))
            for action, number in zip(actions, expected, strict=True):
                if number != fingerprint(model.do(action), model.scheduler.observe()):
                    break
                num_same += 1
        except Exception:  # noqa: BLE001  (whatever it raises or answers, it is not the same)
            return num_same
        return num_same

    def _name_rule(self, engine: Engine, actions: Run) -> str:
        """The first rule that the last action breaks, if it breaks any but to be the same."""
        *earlier, last = actions
        judge = Judge(self.setting.scheduler, select_invariants(self.setting.claims))
        try:
            run = ObservedRun(self.setting.scheduler, engine.build(self.setting.scheduler))
            for action in earlier:
                run.step(action)
            breach = next(judge.breaches(run.step(last)), None)
        except EngineFault as fault:
            return fault.name
        except Exception:  # noqa: BLE001  (it answers what nobody can judge)
            return "engine_answers"
        return "same_as_spec" if breach is None else breach.name

    def _look(self, actions: Run) -> list[int]:
        """What the specification shows after each action."""
        model = Model(None, ReferenceScheduler(self.setting.scheduler))
        return [fingerprint(model.do(action), model.scheduler.observe()) for action in actions]


class Courses:
    """The courses of some settings, each made when somebody first asks for it."""

    def __init__(self, settings: list[Setting]) -> None:
        # Short ones first: most mutants die in them.
        self.settings = sorted(settings, key=_estimate_effort)
        self._made: dict[str, Course] = {}

    def get(self, setting: Setting) -> Course:
        """The course of a setting. No mutant may be planted when it is made."""
        if setting.name not in self._made:
            self._made[setting.name] = make_course(setting)
        return self._made[setting.name]


def make_course(setting: Setting) -> Course:
    """A tour of a setting that can be seen whole, or walks."""
    if is_toured(setting):
        return Course(setting, *take_tour(setting))
    return Course(setting, [_walk(setting, seed) for seed in range(NUM_WALKS)], 0)


def is_toured(setting: Setting) -> bool:
    """Whether every action of every state of a setting is taken."""
    return setting.num_states is not None and setting.num_states <= MAX_TOUR


def _estimate_effort(setting: Setting) -> int:
    """How long a course is, roughly; walks count as a tour of so many states."""
    num_rows = len(setting.environment.sampled_token_ids) ** 2
    return (setting.num_states or 0) * num_rows if is_toured(setting) else WALKS_AS_STATES


def _walk(setting: Setting, seed: int) -> Run:
    rng = random.Random(f"{setting.name} {seed}")
    model = Model(setting.environment, ReferenceScheduler(setting.scheduler))
    actions: Run = []
    while len(actions) < LENGTH and (action := draw_action(model, rng)) is not None:
        model.do(action)
        actions.append(action)
    return actions


def fingerprint(outcome: Outcome, seen: Observation) -> int:
    """A number for all that an action shows: answers and state, block ids and orders included."""
    output = outcome.output
    contents = seen.block_contents or {}
    return hash(
        (
            tuple(seen.running),
            tuple(seen.waiting),
            tuple([(n, get_shown(r), tuple(r.block_ids)) for n, r in seen.requests.items()]),
            seen.num_free_blocks,
            tuple(seen.free_block_ids),
            tuple(seen.ref_cnt.items()),
            tuple(seen.cached_block_ids),
            tuple(seen.finished_req_ids),
            frozenset(contents.items()),
            repr(seen.retained),
            tuple(seen.deferred_loads.items()),
            None if output is None else repr(output),
            None if outcome.results is None else repr(outcome.results),
            outcome.is_reset,
        )
    )
