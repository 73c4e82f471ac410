"""A runner that gives no answer: who raised what, in which step, of whose tokens.

Entry points: `blaming`, `ask` and `Answer`. That there is no answer is a finding of its own, and
says nothing of rows.
"""

from __future__ import annotations

import textwrap
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from attrs import fields, frozen

from checkers.answers import find_faults
from checkers.engines import call_within
from checkers.errors import EngineFault, HarnessError
from gpu_conformance.ledger import Part
from gpu_conformance.registry import NotHere
from spec.interface import ModelRunnerOutput, SchedulerOutput

A = TypeVar("A")
T = TypeVar("T")

NUM_FRAMES = 3
"""Of a traceback, so many of the innermost calls are shown."""
MAX_SHOWN = 200
"""Characters of an error in a sentence."""
NUM_SHOWN = 3
"""Requests of a step that are named."""
MAX_TOKEN_ID = 2**31 - 1
"""Token ids have 32 bits; a runner that shows no logits does not tell its vocabulary."""


class NoAnswer(Exception):  # noqa: N818  (becomes a `RunnerFault` where the step is known)
    """What a runner hands over is no answer. The message says what it is."""

    def __init__(self, evidence: str, trace: str = "") -> None:
        super().__init__(evidence)
        self.trace = trace
        """Where the runner was, if it did not return."""


class RunnerFault(Exception):  # noqa: N818  (not an error of the harness: it becomes a finding)
    """A runner under test raised, or answered with what is no answer."""

    def __init__(self, evidence: str, trace: str = "") -> None:
        super().__init__(evidence)
        self.evidence = evidence
        self.trace = trace
        """The last lines of the traceback, if the runner raised."""


@frozen(eq=False)
class Answer:
    """What a step has come to, and how it looked when it was returned."""

    step: int
    returned: ModelRunnerOutput
    """The runner's own, which it may fill anew."""
    kept: ModelRunnerOutput
    """A copy: this is compared, and this the scheduler hears."""

    def deliver(self) -> ModelRunnerOutput:
        """Returns what the scheduler hears, which may be some steps later.

        Raises `RunnerFault` if the runner has changed it: in service nobody keeps a copy.
        """
        change = _find_change(self.kept, self.returned)
        if change:
            raise RunnerFault(
                f"the answer of step {self.step} was changed after it was returned: {change}"
            )
        return self.kept


def keep(step: int, result: ModelRunnerOutput) -> Answer:
    """Keeps how an answer looks now; its type is checked."""
    copied = {name: list(token_ids) for name, token_ids in result.sampled_token_ids.items()}
    return Answer(step, result, ModelRunnerOutput(copied))


def _find_change(before: ModelRunnerOutput, now: ModelRunnerOutput) -> str:
    fault = next(find_faults(now, ModelRunnerOutput, "it"), None)
    if fault is not None:
        return fault
    old, new = before.sampled_token_ids, now.sampled_token_ids
    for name in {**old, **new}:
        if old.get(name) != new.get(name):
            had, has = (str(each.get(name, "nothing")) for each in (old, new))
            return f"it had {had} for {name}, and has {has} when the scheduler hears of it"
    return ""


def ask(limit_s: float, name: str, call: Callable[[A], T], argument: A) -> T:
    """Calls a runner; raises `NoAnswer` if that takes so many seconds."""
    try:
        return call_within(limit_s, call, argument)
    except EngineFault as fault:
        raise NoAnswer(f"{name} {fault.evidence}", fault.traceback.rstrip()) from None


@contextmanager
def blaming(step: int, output: SchedulerOutput) -> Iterator[None]:
    """Turns whatever a runner raises, or shows, in the block into a `RunnerFault`, and a hang."""
    try:
        yield
    except (HarnessError, NotHere):
        raise
    except NoAnswer as fault:
        raise RunnerFault(f"{fault}, {_place(step, output)}", fault.trace) from None
    except (Exception, SystemExit) as error:
        message = textwrap.shorten(f"{type(error).__name__}: {error}", MAX_SHOWN)
        evidence = f"the runner raises {message}, {_place(step, output)}"
        raise RunnerFault(evidence, format_end(error)) from error


def format_end(error: BaseException) -> str:
    """The last lines of a traceback, from below whoever caught the error."""
    trace = error.__traceback__ and error.__traceback__.tb_next
    lines = traceback.format_exception(type(error), error, trace, -NUM_FRAMES, chain=False)
    return "".join(lines).rstrip()


def check_step(output: SchedulerOutput, handed: SchedulerOutput) -> None:
    """Raises `NoAnswer` if a runner has changed the step that it was handed; others read it."""
    for field in fields(SchedulerOutput):
        before = repr(getattr(output, field.name))
        now = repr(getattr(handed, field.name, None))
        if now != before:
            raise NoAnswer(
                f"the runner changed {field.name} of the step that it was handed from "
                f"{_cut(before)} to {_cut(now)}"
            )


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def check_answer(output: SchedulerOutput, result: object) -> None:
    """Raises `NoAnswer` unless it has the type of an answer, and is of this very step."""
    fault = next(find_faults(result, ModelRunnerOutput, "the answer of execute()"), None)
    if fault is not None:
        raise NoAnswer(fault)
    assert isinstance(result, ModelRunnerOutput), "its type was just checked"
    for name, token_ids in result.sampled_token_ids.items():
        if name not in output.num_scheduled_tokens:
            raise NoAnswer(f"the runner samples {token_ids} for {name}, which is not in the step")
        num_drafts = len(output.scheduled_spec_decode_tokens.get(name, []))
        if len(token_ids) > num_drafts + 1:
            raise NoAnswer(
                f"the runner samples {len(token_ids)} tokens for {name}, "
                f"however {num_drafts + 1} may be: {token_ids}"
            )
        if min(token_ids, default=0) < 0:
            raise NoAnswer(f"the runner samples {token_ids} for {name}; tokens count from 0")
        if max(token_ids, default=0) > MAX_TOKEN_ID:
            raise NoAnswer(
                f"the runner samples {_cut(str(token_ids))} for {name}; no token is above "
                f"{MAX_TOKEN_ID}"
            )


def check_sampled(parts: Sequence[Part], result: ModelRunnerOutput) -> None:
    """Raises `NoAnswer` if a request that is due a token gets none: it would wait for ever."""
    for part in parts:
        if part.is_sampled and not result.sampled_token_ids.get(part.request_id):
            raise NoAnswer(
                f"the runner samples nothing for {part.request_id}, of which all {part.end} tokens "
                f"are computed; it returned sampled_token_ids={result.sampled_token_ids}"
            )


def _place(step: int, output: SchedulerOutput) -> str:
    shares = [f"{name} {num_tokens}" for name, num_tokens in output.num_scheduled_tokens.items()]
    others = f", and of {len(shares) - NUM_SHOWN} more" if len(shares) > NUM_SHOWN else ""
    return f"in step {step} (tokens: {', '.join(shares[:NUM_SHOWN])}{others})"
