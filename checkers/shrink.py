"""From a long failing run to a short one that fails in the same way.

Entry point: `shrink`. Delta debugging over the actions, then simpler requests and tokens, until
nothing helps; then walks that begin as the run does (`checkers.rewalk`), until one of them fails
sooner. A candidate counts only if its run breaks the same rule, so a shrunk run never tells another
story. How much is tried is counted in actions, so that a busy machine shrinks as an idle one does.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from itertools import islice

import attrs
from attrs import frozen

from checkers.configs import Setting
from checkers.rewalk import cut_prompt, rewalks
from checkers.trial import Trial
from spec.actions import Action, AddRequest, UpdateFromOutput
from spec.interface import NewRequest

Attempt = Callable[[list[Action]], Trial]
"""Runs actions on a fresh engine."""
LENGTH = 150
"""Of a walk."""
TRIES_PER_ACTION = 200
"""How many walks begin as a run does, for each of its actions, before it is called short."""


@frozen(kw_only=True)
class Effort:
    """How much is tried."""

    num_actions: int = 30_000
    """That engines are led through, so that any machine comes to the same; a run that is many times
    longer than a walk takes as many times more."""
    seconds: float = 40.0
    """Wall-clock time, ten times what our engine takes: for engines that are slow, or hang."""

    def half(self) -> Effort:
        """Half as much."""
        return Effort(num_actions=self.num_actions // 2, seconds=self.seconds / 2)


DEFAULT_EFFORT, NO_EFFORT = Effort(), Effort(num_actions=0)


def shrink(
    trial: Trial, attempt: Attempt, setting: Setting | None = None, effort: Effort = DEFAULT_EFFORT
) -> Trial:
    """Returns the shortest run found that breaks the same rule as `trial`.

    `setting` says what else may happen; without it, nothing does that is not in the run. Ctrl-C
    ends it early.
    """
    return _Shrinker(trial, attempt, setting, effort).run()


def names_to_break(trial: Trial) -> frozenset[str]:
    """The rules of which a shorter run must break one, so that it tells the same story.

    A broken invariant says more than a difference, so that must not be all that is left.
    """
    invariants = {breach.name for breach in trial.breaches if breach.kind == "invariant"}
    return frozenset(invariants or {breach.name for breach in trial.breaches})


class _Shrinker:
    def __init__(
        self, trial: Trial, attempt: Attempt, setting: Setting | None, effort: Effort
    ) -> None:
        self.best = trial
        self.names = names_to_break(trial)
        self.attempt = attempt
        self.setting = setting
        self.num_left = effort.num_actions * max(len(trial.steps) // LENGTH, 1)
        self.deadline = time.monotonic() + effort.seconds
        self.rng = random.Random(0)

    def run(self) -> Trial:
        improved = True
        try:
            while improved and self._may_go_on():
                improved = self._drop_chunks()
                for simplify in (simpler_requests, simpler_tokens):
                    improved |= self._take_first_that_fails(simplify)
                improved = improved or self._walk_again()
        except KeyboardInterrupt:
            self.best.is_interrupted = True
        return self.best

    def _may_go_on(self) -> bool:
        return self.num_left > 0 and time.monotonic() < self.deadline

    def _drop_chunks(self) -> bool:
        """Drops runs of actions, long ones first."""
        size, improved = max(len(self.best.actions) // 2, 1), False
        while size >= 1 and self._may_go_on():
            start = 0
            while start < len(self.best.actions):
                actions = self.best.actions
                if self._accept(actions[:start] + actions[start + size :]):
                    improved = True
                else:
                    start += size
            size //= 2
        return improved

    def _take_first_that_fails(
        self, simplify: Callable[[list[Action]], Iterator[list[Action]]]
    ) -> bool:
        """Tries simpler versions of the run, starting over after each success."""
        improved, again = False, True
        while again and self._may_go_on():
            again = any(self._accept(candidate) for candidate in simplify(self.best.actions))
            improved |= again
        return improved

    def _walk_again(self) -> bool:
        """Walks on at random from states on the way, until a walk fails sooner."""
        actions = self.best.actions
        if self.setting is None or len(actions) < 2:
            return False
        walks = rewalks(self.setting, actions, self.rng)
        for walk in islice(walks, TRIES_PER_ACTION * len(actions)):
            if self._accept(walk):
                return True
            if not self._may_go_on():
                break
        return False

    def _accept(self, actions: list[Action]) -> bool:
        """Whether the candidate fails in the same way, no later than the best, and differs.

        Without anything left to spend, none is tried.
        """
        if not self._may_go_on():
            return False
        self.num_left -= max(len(actions), 1)
        trial = self.attempt(actions)
        fails = bool(self.names & {breach.name for breach in trial.breaches})
        if (
            not fails
            or trial.actions == self.best.actions
            or len(trial.steps) > len(self.best.steps)
        ):
            return False
        self.best = trial
        return True


def simpler_requests(actions: list[Action]) -> Iterator[list[Action]]:
    """Yields runs in which one request is simpler."""
    for place, action in enumerate(actions):
        if isinstance(action, AddRequest):
            for simpler in _simpler_versions(action.request):
                yield [*actions[:place], AddRequest(simpler, action.shape), *actions[place + 1 :]]


def _simpler_versions(new: NewRequest) -> Iterator[NewRequest]:
    prompt = new.prompt_token_ids
    for length in sorted({1, len(prompt) // 2, len(prompt) - 1}):
        if 0 < length < len(prompt):
            yield cut_prompt(new, length)
    if any(prompt):
        yield attrs.evolve(new, prompt_token_ids=(0,) * len(prompt))
    if new.max_tokens > 1:
        yield attrs.evolve(new, max_tokens=new.max_tokens - 1)
    for name in SIMPLE_FIELDS:
        default = getattr(attrs.fields(NewRequest), name).default
        if getattr(new, name) != default:
            yield attrs.evolve(new, **{name: default})


SIMPLE_FIELDS = (
    "min_tokens",
    "eos_token_id",
    "stop_token_ids",
    "repetition_detection",
    "priority",
    "client_index",
    "cache_salt",
    "lora_id",
    "structured_output",
    "num_remote_tokens",
    "resumable",
)


def simpler_tokens(actions: list[Action]) -> Iterator[list[Action]]:
    """Yields runs in which one step samples ordinary tokens only, or is followed by no drafts."""
    for place, action in enumerate(actions):
        if isinstance(action, UpdateFromOutput):
            drafts, sampled = action.draft_token_ids, action.sampled_token_ids
            if sampled:
                yield [*actions[:place], UpdateFromOutput({}, drafts), *actions[place + 1 :]]
            if drafts:
                yield [*actions[:place], UpdateFromOutput(sampled), *actions[place + 1 :]]
