"""Engines for the tests of the checkers: the specification, mostly with one fault each."""

from __future__ import annotations

import copy
import ctypes
import itertools
import random
import time
from typing import Any

import attrs

from checkers.configs import Setting, load_settings
from checkers.engines import Engine
from checkers.search import make_rules
from checkers.trial import Trial, run_trial
from checkers.walk import draw_action
from spec.actions import Action
from spec.interface import NewRequest, Observation, SchedulerConfig, SchedulerOutput
from spec.model import Model
from spec.scheduler import ReferenceScheduler

TINY = load_settings()["tiny"]


def engine_of(make: Any, time_limit_s: float = 10.0) -> Engine:
    """An engine as the command line would find it in this file."""
    return Engine(f"{__name__}:{make.__name__}", make, time_limit_s)


def attempt(make: Any, actions: list[Action], setting: Setting = TINY) -> Trial:
    """Runs actions on a fresh engine, beside the specification."""
    engine = engine_of(make)
    return run_trial(make_rules(engine, setting), engine, actions)


def all_runs(setting: Setting, length: int) -> list[list[Action]]:
    """Every run of a length that the specification can go through, by trying everything."""
    runs: list[list[Action]] = [[]]
    for _ in range(length):
        runs = [[*run, action] for run in runs for action in after(setting, run).enabled_actions()]
    return runs


def walked(setting: Setting, seed: int, length: int = 40) -> list[Action]:
    """A random run of the specification."""
    rng = random.Random(seed)
    model = Model(setting.environment, ReferenceScheduler(setting.scheduler))
    actions: list[Action] = []
    for _ in range(length):
        action = draw_action(model, rng)
        assert action is not None, "something may always happen"
        model.do(action)
        actions.append(action)
    return actions


def after(setting: Setting, run: list[Action]) -> Model:
    """The specification in its environment, led through a run."""
    model = Model(setting.environment, ReferenceScheduler(setting.scheduler))
    for action in run:
        model.do(action)
    return model


# ---- decisions that are wrong --------------------------------------------------------------------


class ServesTheNewestFirst(ReferenceScheduler):
    """Puts arrivals at the head of the queue: shown by two arrivals."""

    def add_request(self, new: NewRequest) -> None:
        """Wrong."""
        super().add_request(new)
        self.waiting.items.insert(0, self.waiting.items.pop())


class ExceedsTheBudget(ReferenceScheduler):
    """Schedules a token too many: shown by two arrivals and a step."""

    def _begin_step(self) -> None:
        super()._begin_step()
        self.token_budget += 1
        self.input_budget += 1


class TakesTheInputBudget(ReferenceScheduler):
    """Its tokens are limited by what draft slots count on, too."""

    def _begin_step(self) -> None:
        super()._begin_step()
        if self.pause_state != "paused_all":
            self.token_budget = self.config.max_num_batched_tokens


class LosesABlock(ReferenceScheduler):
    """Loses a block of a running request that ends: shown by an arrival, a step and an abort."""

    def _finish(self, request: Any, status: int) -> None:
        held = request.num_blocks
        super()._finish(request, status)
        if held:
            self.block_pool.free_block_queue.pop()
            self.block_pool.num_free_blocks -= 1


class FailsInTheSecondStep(ReferenceScheduler):
    """Remembers how often it was called, so that its state depends on the way to it."""

    num_steps = 0

    def schedule(self) -> SchedulerOutput:
        """Wrong at the second time."""
        self.num_steps += 1
        if self.num_steps == 2:
            raise RuntimeError("the second step is one too many")
        return super().schedule()


class Moody(ReferenceScheduler):
    """Fails once per process, so that nothing it does can be repeated."""

    num_built = itertools.count()

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self.is_moody = next(Moody.num_built) == 0

    def schedule(self) -> SchedulerOutput:
        """Wrong in the first engine that was built."""
        if self.is_moody:
            raise RuntimeError("not today")
        return super().schedule()


# ---- calls that fail -----------------------------------------------------------------------------


class RaisesInSchedule(ReferenceScheduler):
    """Raises once a request runs."""

    def schedule(self) -> SchedulerOutput:
        """Wrong in the second step."""
        if self.running:
            raise ZeroDivisionError("no tokens left")
        return super().schedule()


class Exits(ReferenceScheduler):
    """Ends the process from inside."""

    def schedule(self) -> SchedulerOutput:
        """Wrong."""
        raise SystemExit(0)


class HangsInSchedule(ReferenceScheduler):
    """Never returns."""

    def schedule(self) -> SchedulerOutput:
        """Wrong."""
        while True:
            time.sleep(0.01)


class SwallowsEverything(ReferenceScheduler):
    """Never returns, and catches whatever would end it."""

    def schedule(self) -> SchedulerOutput:
        """Wrong."""
        while True:
            try:  # noqa: SIM105
                time.sleep(0.01)
            except:  # noqa: E722, S110
                pass


class Chatty(ReferenceScheduler):
    """Prints, which is no fault."""

    def schedule(self) -> SchedulerOutput:
        """As the parent."""
        print("a step!")  # noqa: T201
        return super().schedule()


class RaisesWhenBuilt:
    """Cannot be built."""

    def __init__(self, config: SchedulerConfig) -> None:
        raise OSError("no such device")


# ---- blocks by other names -----------------------------------------------------------------------


class Renamed:
    """The specification, with its blocks renamed from outside."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.inner = ReferenceScheduler(config)
        self.names = {name: 1000 - name for name in range(config.num_blocks + 1)}

    def add_request(self, new: NewRequest) -> None:
        """As the specification."""
        self.inner.add_request(new)

    def finish_requests(self, request_ids: Any, finished_status: Any) -> None:
        """As the specification."""
        self.inner.finish_requests(request_ids, finished_status)

    def schedule(self) -> SchedulerOutput:
        """As the specification, under other names."""
        output = self.inner.schedule()
        shown = copy.deepcopy(output)
        for new in shown.scheduled_new_reqs.values():
            new.block_ids = self.rename(new.block_ids)
        for cached in shown.scheduled_cached_reqs.values():
            cached.new_block_ids = self.rename(cached.new_block_ids)
        shown.new_block_ids_to_zero = self.rename(output.new_block_ids_to_zero)
        return shown

    def update_from_output(self, output: SchedulerOutput, result: Any) -> Any:
        """As the specification, which reads no block ids in it."""
        return self.inner.update_from_output(output, result)

    def observe(self) -> Observation:
        """As the specification, under other names."""
        seen = self.inner.observe()
        return attrs.evolve(
            seen,
            requests={
                name: attrs.evolve(request, block_ids=self.rename(request.block_ids))
                for name, request in seen.requests.items()
            },
            free_block_ids=self.rename(seen.free_block_ids),
            ref_cnt={self.names[name]: count for name, count in seen.ref_cnt.items()},
            cached_block_ids=sorted(self.rename(seen.cached_block_ids)),
            block_contents={self.names[n]: c for n, c in (seen.block_contents or {}).items()},
        )

    def rename(self, block_ids: Any) -> list[int]:
        """Blocks under their other names."""
        return [self.names[block_id] for block_id in block_ids]


class Reordered(ReferenceScheduler):
    """Hands its blocks out in another order."""

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self.block_pool.free_block_queue.reverse()


class SwapsBlocks(ReferenceScheduler):
    """Exchanges the last blocks of two running requests in secret, whenever it can."""

    def update_from_output(self, output: SchedulerOutput, result: Any) -> Any:
        """Wrong: a request's KV is in the other's block from now on."""
        results = super().update_from_output(output, result)
        if len(self.running) > 1:
            first, second = self.running[:2]
            *rest, mine = first.block_ids
            *others, theirs = second.block_ids
            first.block_ids, second.block_ids = [*rest, theirs], [*others, mine]
        return results


class EndsItsProcess(ReferenceScheduler):
    """Takes everybody along who shares its process."""

    def schedule(self) -> SchedulerOutput:
        """Wrong."""
        ctypes.CDLL(None)._exit(7)
