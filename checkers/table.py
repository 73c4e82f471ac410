"""A run as a table: what happened, and what the queues and blocks were after it.

Entry point: `table_of`. A step that returns before anything else happens is one row
("engine step").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import attrs

from checkers.lockstep import NAMELESS
from checkers.run import Breach
from spec.actions import (
    ACTION_NAMES,
    Action,
    AddRequest,
    Control,
    FinishRequests,
    Schedule,
    StreamingChunk,
    UpdateFromOutput,
)
from spec.interface import EngineCoreOutput, NewRequest, Observation, SchedulerOutput

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


LOOP = ("", "then, for ever:", *[""] * (len(HEADER) - 2))
"""The row before a loop."""


def table_of(
    steps: Sequence[Step], num_blocks: int, loop_start: int | None = None
) -> Iterator[str]:
    """Yields the lines of the table, the header first; a row stands before a loop."""
    rows = [HEADER, *_rows(steps, num_blocks, loop_start)]
    if not any(step.observation and step.observation.cached_block_ids for step in steps):
        rows = [row[:-1] for row in rows]  # Without a prefix cache there is nothing to say.
    yield from align(rows)


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a table whose columns are as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _rows(
    steps: Sequence[Step], num_blocks: int, loop_start: int | None
) -> Iterator[tuple[str, ...]]:
    place = 0
    while place < len(steps):
        if place == loop_start:
            yield LOOP
        number, step = place + 1, steps[place]
        text = describe_action(step)
        following = steps[place + 1] if place + 1 < len(steps) else None
        is_cut = loop_start == place + 1
        if following is not None and not is_cut and _is_whole_step(steps, place):
            rows = _describe_rows(step, following)
            text = f"engine step: {describe_schedule(step)}{rows}{_describe_ends(following)}"
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
        return f"add_request({describe_request(action.request)}){_describe_ends(step)}"
    if isinstance(action, Control):
        return _describe_control(action)
    if isinstance(action, FinishRequests):
        return (
            f"{action.status.name.removeprefix('FINISHED_').lower()} {' '.join(action.request_ids)}"
        )
    if isinstance(action, Schedule):
        return f"schedule: {describe_schedule(step)}"
    sampled = ", ".join(f"{name} {tokens}" for name, tokens in action.sampled_token_ids.items())
    drafts = _describe_new_drafts(action)
    return f"step returns: {sampled or 'nothing sampled'}{drafts}{_describe_ends(step)}"


def _describe_control(action: Control) -> str:
    if isinstance(action, StreamingChunk):
        return f"{ACTION_NAMES[StreamingChunk]}({action.request_id}, {_describe_chunk(action)})"
    arguments = ", ".join(f"{name}={value}" for name, value in attrs.asdict(action).items())
    return f"{ACTION_NAMES[type(action)]}({arguments})"


def _describe_chunk(action: StreamingChunk) -> str:
    update = action.update
    if update is None:
        return "closed"
    return f"prompt_token_ids={list(update.prompt_token_ids)}, max_tokens={update.max_tokens}"


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
    """What a step computes, whom it preempts, and whose KV is loaded from then on."""
    output = step.output
    if output is None:
        return "no answer"
    drafts = output.scheduled_spec_decode_tokens
    grants = [
        f"{name} {_count_tokens(num_tokens)}"
        + (f" with drafts {drafts[name]}" if name in drafts else "")
        for name, num_tokens in output.num_scheduled_tokens.items()
    ]
    preempted = [f"{name} preempted" for name in output.preempted_req_ids]
    loads = [
        f"{name} loads {_count_tokens(load.end - load.start)}"
        for name, load in output.kv_loads.items()
    ]
    return ", ".join(grants + preempted + loads) or "nothing"


def _count_tokens(number: int) -> str:
    return f"{number} token" if number == 1 else f"{number} tokens"


def _describe_rows(step: Step, following: Step) -> str:
    """What the requests of a step get whose drafts it verifies, and who is given new ones."""
    action, output = following.action, step.output
    if not isinstance(action, UpdateFromOutput):
        return ""
    verified = {} if output is None else output.scheduled_spec_decode_tokens
    rows = [
        f", {name} samples {tokens}"
        for name, tokens in action.sampled_token_ids.items()
        if name in verified
    ]
    return "".join(rows) + _describe_new_drafts(action)


def _describe_new_drafts(action: UpdateFromOutput) -> str:
    drafts = action.draft_token_ids.items()
    return "".join(f", {name} is given drafts {token_ids}" for name, token_ids in drafts)


def _describe_ends(step: Step) -> str:
    # Streaming input: whoever is there afterwards has only ended a turn.
    alive = {} if step.observation is None else step.observation.requests
    ends = [
        f", {output.request_id} {'ends a turn' if output.request_id in alive else 'finishes'} "
        f"({output.finish_reason})"
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
        if any(NAMELESS in sentence for sentence in breach.evidence[:MAX_EVIDENCE]):
            yield f"  A {NAMELESS} block is one that has no counterpart on the other side."
        if breach.detail:
            yield "  The traceback:" if breach.kind == "engine" else "  How the spec decided:"
            yield from (f"    {line}" for line in breach.detail.rstrip().splitlines())
