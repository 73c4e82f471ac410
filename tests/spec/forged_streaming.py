"""Forgeries of what becomes of a resumable request between its turns."""

from __future__ import annotations

from spec.actions import StreamingChunk
from spec.interface import SchedulerConfig, StreamingUpdate
from spec.transition import Transition
from tests.spec.forgeries import breaks
from tests.spec.support import make_config, make_request
from tests.spec.transitions import Story

Made = tuple[SchedulerConfig, Transition]
CHUNK = StreamingUpdate(prompt_token_ids=(7, 7), max_tokens=3, arrival_time=1.0)

# ---- transitions of correct runs -----------------------------------------------------------------


def a_turn_that_ends() -> Made:
    """A's turn is over with its 7th token."""
    config = make_config()
    story = Story(config, make_request("A", 6, 1, resumable=True))
    story.schedule()
    return config, story.update()


def a_step_between_turns() -> Made:
    """A waits for a chunk, with its two blocks, while a step computes B."""
    config = make_config()
    story = Story(config, make_request("A", 6, 1, resumable=True))
    story.run(1)
    story.add(make_request("B", 3))
    return config, story.schedule()


def a_chunk() -> Made:
    """A chunk of two tokens ends A's wait, beside B, who runs."""
    config = make_config()
    story = Story(config, make_request("A", 6, 1, resumable=True), make_request("B", 3))
    story.run(1)
    return config, story.step(StreamingChunk("A", CHUNK))


def a_chunk_that_waits() -> Made:
    """A chunk arrives before A's first turn is over."""
    config = make_config()
    story = Story(config, make_request("A", 6, 3, resumable=True))
    story.run(1)
    return config, story.step(StreamingChunk("A", CHUNK))


BASES = (a_turn_that_ends, a_step_between_turns, a_chunk, a_chunk_that_waits)

# ---- forgeries -----------------------------------------------------------------------------------


@breaks(
    "a_turn_ends_at_its_last_token",
    a_turn_that_ends,
    "A held [1, 2], and after its turn [1]",
)
def _a_turn_that_loses_a_block(seen: Transition) -> None:
    seen.after.requests["A"].block_ids = [1]


@breaks(
    "a_turn_ends_at_its_last_token",
    a_turn_that_ends,
    "A has num_computed_tokens=7 and num_output_placeholders=0 after its turn, "
    "however 6 tokens before its last are computed",
)
def _the_discarded_token_is_computed(seen: Transition) -> None:
    seen.after.requests["A"].num_computed_tokens = 7


@breaks(
    "who_waits_for_input_keeps_all",
    a_step_between_turns,
    "A waited with 6 tokens in [1, 2], now it has 0 in []",
)
def _a_preemption_between_turns(seen: Transition) -> None:
    seen.after.requests["A"].num_computed_tokens = 0
    seen.after.requests["A"].block_ids = []


@breaks(
    "who_waits_for_input_keeps_its_seat",
    a_step_between_turns,
    "['B', 'C', 'D', 'E'] run and ['A'] wait for a chunk, max_num_seqs=4",
)
def _a_seat_given_away(seen: Transition) -> None:
    seen.after.running += ["C", "D", "E"]


@breaks(
    "nobody_overtakes",
    a_step_between_turns,
    "A is admitted, however no chunk has followed on its turn",
)
def _admitted_without_a_chunk(seen: Transition) -> None:
    seen.after.running.insert(0, "A")
    seen.after.waiting.remove("A")


@breaks(
    "a_chunk_is_for_one_request",
    a_chunk,
    "B changed, however the chunk is for A",
)
def _a_chunk_that_ends_another(seen: Transition) -> None:
    del seen.after.requests["B"]


@breaks(
    "a_chunk_is_for_one_request",
    a_chunk,
    "A counts (prompt, output) = (9, 0) after the chunk, due are (8, 0)",
)
def _a_token_that_is_not_discarded(seen: Transition) -> None:
    seen.after.requests["A"].num_prompt_tokens = 9


@breaks(
    "a_chunk_is_for_one_request",
    a_chunk_that_waits,
    "A changed, however the chunk has to wait until its turn is over",
)
def _a_chunk_that_does_not_wait(seen: Transition) -> None:
    seen.after.requests["A"].status = "WAITING"
