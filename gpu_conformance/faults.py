"""A runner that gives no answer: who raised what, in which step, of whose tokens.

Entry point: `blaming`. That there is no answer is a finding of its own, and says nothing of rows.
"""

from __future__ import annotations

import textwrap
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from checkers.answers import find_faults
from checkers.errors import EngineFault, HarnessError
from gpu_conformance.ledger import Part
from gpu_conformance.registry import NotHere
from spec.interface import ModelRunnerOutput, SchedulerOutput

NUM_FRAMES = 3
"""Of a traceback, so many of the innermost calls are shown."""
MAX_SHOWN = 200
"""Characters of an error in a sentence."""
NUM_SHOWN = 3
"""Requests of a step that are named."""


class NoAnswer(Exception):  # noqa: N818  (becomes a `RunnerFault` where the step is known)
    """What a runner hands over is no answer. The message says what it is."""


class RunnerFault(Exception):  # noqa: N818  (not an error of the harness: it becomes a finding)
    """A runner under test raised, or answered with what is no answer."""

    def __init__(self, evidence: str, trace: str = "") -> None:
        super().__init__(evidence)
        self.evidence = evidence
        self.trace = trace
        """The last lines of the traceback, if the runner raised."""


@contextmanager
def blaming(step: int, output: SchedulerOutput) -> Iterator[None]:
    """Turns whatever a runner raises, or shows, in the block into a `RunnerFault`, and a hang."""
    try:
        yield
    except (HarnessError, NotHere):
        raise
    except EngineFault as fault:
        raise RunnerFault(
            f"execute() {fault.evidence}, {_place(step, output)}", fault.traceback.rstrip()
        ) from None
    except NoAnswer as fault:
        raise RunnerFault(f"{fault}, {_place(step, output)}") from None
    except (Exception, SystemExit) as error:
        message = textwrap.shorten(f"{type(error).__name__}: {error}", MAX_SHOWN)
        evidence = f"the runner raises {message}, {_place(step, output)}"
        raise RunnerFault(evidence, format_end(error)) from error


def format_end(error: BaseException) -> str:
    """The last lines of a traceback, from below whoever caught the error."""
    trace = error.__traceback__ and error.__traceback__.tb_next
    lines = traceback.format_exception(type(error), error, trace, -NUM_FRAMES, chain=False)
    return "".join(lines).rstrip()


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
