"""From a long failing run to a short one that fails in the same way.

Entry point: `shrink`. Delta debugging over the actions, then simpler requests and tokens, until
nothing helps. A candidate counts only if its run breaks the same rule, so a shrunk run never tells
another story.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import attrs

from checkers.trial import Trial
from spec.actions import Action, AddRequest, UpdateFromOutput
from spec.interface import NewRequest

Attempt = Callable[[list[Action]], Trial]
"""Runs actions on a fresh engine."""


def shrink(trial: Trial, attempt: Attempt, *, seconds: float = 20.0) -> Trial:
    """Returns the shortest run found that breaks the same rule as `trial`, within a time budget.

    Ctrl-C ends it early.
    """
    return _Shrinker(trial, attempt, time.monotonic() + seconds).run()


class _Shrinker:
    def __init__(self, trial: Trial, attempt: Attempt, deadline: float) -> None:
        self.best = trial
        invariants = {breach.name for breach in trial.breaches if breach.kind == "invariant"}
        # A broken invariant says more than a difference, so that must not be all that is left.
        self.names = invariants or {breach.name for breach in trial.breaches}
        self.attempt = attempt
        self.deadline = deadline

    def run(self) -> Trial:
        improved = True
        try:
            while improved and time.monotonic() < self.deadline:
                improved = self._drop_chunks()
                for simplify in (simpler_requests, simpler_tokens):
                    improved |= self._take_first_that_fails(simplify)
        except KeyboardInterrupt:
            self.best.is_interrupted = True
        return self.best

    def _drop_chunks(self) -> bool:
        """Drops runs of actions, long ones first."""
        size, improved = max(len(self.best.actions) // 2, 1), False
        while size >= 1 and time.monotonic() < self.deadline:
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
        while again and time.monotonic() < self.deadline:
            again = any(self._accept(candidate) for candidate in simplify(self.best.actions))
            improved |= again
        return improved

    def _accept(self, actions: list[Action]) -> bool:
        """Whether the candidate fails in the same way, no later than the best, and differs."""
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
            num_remote_tokens = min(new.num_remote_tokens, length)
            yield attrs.evolve(
                new, prompt_token_ids=prompt[:length], num_remote_tokens=num_remote_tokens
            )
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
