"""A run as a table: what happened, and what the queues and blocks were after it.

Entry point: `table_of`. A step that returns before anything else happens is one row
("engine step").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import attrs

from checkers.run import Breach
from spec.interface import EngineCoreOutput, NewRequest, Observation, SchedulerOutput
from spec.model import Action, AddRequest, FinishRequests, Schedule, UpdateFromOutput

MAX_EVIDENCE = 5
"""Sentences printed per broken rule; the file holds all of them."""


class Step(Protocol):
    """What a row is made from."""

    @property
    def action(self) -> Action:
        """What happened."""

    @property
    def output(self) -> SchedulerOutput | None:
        """What `schedule` answered."""

    @property
    def results(self) -> dict[int, list[EngineCoreOutput]] | None:
        """What `update_from_output` answered."""

    @property
    def observation(self) -> Observation | None:
        """What was seen after it."""


SHOWN_OF_A_REQUEST = ("request_id", "prompt_token_ids", "max_tokens")
"""Fields that every row shows; the others are shown where they are not as usual."""
HEADER = ("#", "action", "running", "waiting", "block_ids", "ref_cnt", "cached")


def table_of(steps: Sequence[Step], num_blocks: int) -> Iterator[str]:
    """Yields the lines of the table, the header first."""
    rows = [HEADER, *_rows(steps, num_blocks)]
    if not any(step.observation and step.observation.cached_block_ids for step in steps):
        rows = [row[:-1] for row in rows]  # Without a prefix cache there is nothing to say.
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _rows(steps: Sequence[Step], num_blocks: int) -> Iterator[tuple[str, ...]]:
    place = 0
    while place < len(steps):
        number, step = place + 1, steps[place]
        text = describe_action(step)
        following = steps[place + 1] if place + 1 < len(steps) else None
        if following is not None and _is_whole_step(steps, place):
            text = f"engine step: {describe_schedule(step)}{_describe_ends(following)}"
            place += 1
            step, label = following, f"{number}-{number + 1}"
        else:
            label = str(number)
        place += 1
        yield (label, text, *describe_state(step.observation, num_blocks))


def _is_whole_step(steps: Sequence[Step], place: int) -> bool:
    """Whether a step returns at once, with no other in flight."""
    if not isinstance(steps[place].action, Schedule):
        return False
    actions = [step.action for step in steps[: place + 2]]
    num_in_flight = sum(isinstance(a, Schedule) for a in actions[:-1]) - sum(
        isinstance(a, UpdateFromOutput) for a in actions[:-1]
    )
    return isinstance(actions[-1], UpdateFromOutput) and num_in_flight == 1


def describe_action(step: Step) -> str:
    """One action in words."""
    action = step.action
    if isinstance(action, AddRequest):
        return f"add_request({describe_request(action.request)})"
    if isinstance(action, FinishRequests):
        return (
            f"{action.status.name.removeprefix('FINISHED_').lower()} {' '.join(action.request_ids)}"
        )
    if isinstance(action, Schedule):
        return f"schedule: {describe_schedule(step)}"
    sampled = ", ".join(f"{name} {tokens}" for name, tokens in action.sampled_token_ids.items())
    return f"step returns: {sampled or 'nothing sampled'}{_describe_ends(step)}"


def describe_request(new: NewRequest) -> str:
    """A request by what matters: its name, lengths, and whatever is not as usual."""
    parts = [
        new.request_id,
        f"num_prompt_tokens={len(new.prompt_token_ids)}",
        f"max_tokens={new.max_tokens}",
    ]
    if any(new.prompt_token_ids):
        parts[1] = f"prompt_token_ids={list(new.prompt_token_ids)}"
    for field in attrs.fields(NewRequest):
        value = getattr(new, field.name)
        # Arrival times only repeat the order of the rows.
        if value != field.default and field.name not in {*SHOWN_OF_A_REQUEST, "arrival_time"}:
            parts.append(f"{field.name}={value}")
    return ", ".join(parts)


def describe_schedule(step: Step) -> str:
    """What a step computes, and whom it preempts."""
    output = step.output
    if output is None:
        return "no answer"
    grants = [
        f"{name} {num_tokens} token" + ("" if num_tokens == 1 else "s")
        for name, num_tokens in output.num_scheduled_tokens.items()
    ]
    preempted = [f"{name} preempted" for name in output.preempted_req_ids]
    return ", ".join(grants + preempted) or "nothing"


def _describe_ends(step: Step) -> str:
    ends = [
        f", {output.request_id} finishes ({output.finish_reason})"
        for outputs in (step.results or {}).values()
        for output in outputs
        if output.finish_reason is not None
    ]
    return "".join(ends)


def describe_state(seen: Observation | None, num_blocks: int) -> tuple[str, ...]:
    """Queues, block tables, reference counts and published blocks, each as a cell."""
    if seen is None:
        return ("?",) * 5
    tables = [
        f"{name}: {' '.join(map(str, request.block_ids))}"
        for name, request in seen.requests.items()
        if request.block_ids
    ]
    blocks = sorted({*seen.free_block_ids, *seen.ref_cnt})
    counts = [str(seen.ref_cnt.get(block_id, 0)) for block_id in blocks]
    if len(counts) > 16:
        counts = [f"{len(seen.ref_cnt)} of {num_blocks} held"]
    return (
        " ".join(seen.running) or "-",
        " ".join(seen.waiting) or "-",
        ", ".join(tables) or "-",
        " ".join(counts),
        " ".join(map(str, seen.cached_block_ids)) or "-",
    )


def describe_breach(breaches: Sequence[Breach]) -> Iterator[str]:
    """Yields the evidence of every broken rule, and after each how the spec decided."""
    for place, breach in enumerate(breaches):
        if place:
            yield f"Also {breach.name}: {breach.rule}"
        for sentence in breach.evidence[:MAX_EVIDENCE]:
            contradiction = ": a contradiction" if "however" in sentence else ""
            yield f"Then {sentence}{contradiction}."
        if len(breach.evidence) > MAX_EVIDENCE:
            yield f"  and {len(breach.evidence) - MAX_EVIDENCE} more; the file has them all"
        if breach.detail:
            yield "  The traceback:" if breach.kind == "engine" else "  How the spec decided:"
            yield from (f"    {line}" for line in breach.detail.rstrip().splitlines())
