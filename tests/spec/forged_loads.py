"""Forgeries of loads from a remote store, and of blocks that are kept back."""

from __future__ import annotations

from spec.actions import KVReceived
from spec.interface import KVLoad, RetainedBlocks, SchedulerConfig
from spec.transition import Transition
from tests.spec.forgeries import breaks, output_of
from tests.spec.situations_of_loads import LATE, loading, remote
from tests.spec.support import make_config, make_request
from tests.spec.transitions import Story

Made = tuple[SchedulerConfig, Transition]

# ---- transitions of correct runs -----------------------------------------------------------------


def a_load_beside_a_prompt() -> Made:
    """B has computed 4 of its 12 tokens and A's load begins; all 5 blocks are spoken for."""
    config = make_config(load_kv_async=True, num_blocks=5, long_prefill_token_threshold=4)
    return config, Story(config, make_request("B", 12), remote(8)).schedule()


def a_load_beside_a_reserve() -> Made:
    """B has computed 4 of its 12 tokens and A's load begins; all 7 blocks are spoken for."""
    config = make_config(
        load_kv_async=True,
        num_blocks=7,
        long_prefill_token_threshold=4,
        reserve_admitted_prefills=True,
        num_watermark_blocks=1,
    )
    return config, Story(config, make_request("B", 12), remote(12)).schedule()


def a_load_before_others() -> Made:
    """A waits for its KV in blocks 1 and 2, and C behind it for a seat, which B has."""
    config = make_config(load_kv_async=True, max_num_seqs=1)
    story = Story(config, remote(), make_request("B", 3), make_request("C", 3))
    return config, story.schedule()


def a_load_in_part() -> Made:
    """One of A's two blocks arrives, while B runs."""
    config = make_config(load_kv_async=True)
    story = Story(config, remote(), make_request("B", 3))
    story.run(1)
    return config, story.step(KVReceived("A", 4))


def an_admission_after_a_load_in_part() -> Made:
    """Of A's two blocks the first has arrived, and the rest of its prompt is computed."""
    config, story = loading()
    story.step(KVReceived("A", 4))
    return config, story.schedule()


def a_deferred_load() -> Made:
    """A's load is admitted while a step of B is in flight, for which it waits."""
    config = make_config(**LATE)
    story = Story(config, make_request("B", 6))
    story.schedule()
    story.add(remote())
    return config, story.schedule()


def an_abort_in_flight() -> Made:
    """B's blocks 1 and 5 are kept back for two steps, A's 3 and 4 for its load, and C stays."""
    config = make_config(**LATE)
    story = Story(config, make_request("B", 3), make_request("C", 3))
    story.schedule()
    story.add(remote())
    story.schedule()
    story.update()
    story.schedule()
    return config, story.abort("B", "A")


def a_step_that_is_waited_for() -> Made:
    """The first of two steps returns, for which B's blocks 1 and 2 were kept back."""
    config = make_config(**LATE)
    story = Story(config, make_request("B", 6), make_request("C", 3))
    story.schedule()
    story.schedule()
    story.abort("B")
    return config, story.update()


def a_preemption_where_blocks_are_kept() -> Made:
    """A takes a third block from B, whose steps have all returned."""
    config = make_config(defer_block_free=True, num_blocks=4)
    story = Story(config, make_request("A", 8), make_request("B", 7))
    story.run(1)
    return config, story.schedule()


BASES = (
    a_load_beside_a_prompt,
    a_load_before_others,
    a_load_in_part,
    an_admission_after_a_load_in_part,
    a_deferred_load,
    an_abort_in_flight,
    a_step_that_is_waited_for,
    a_preemption_where_blocks_are_kept,
)

# ---- forgeries -----------------------------------------------------------------------------------


@breaks(
    "whoever_holds_kv_is_first",
    a_load_before_others,
    "A holds [1, 2] and stands behind C",
)
def _a_load_stands_behind_others(seen: Transition) -> None:
    seen.after.waiting.reverse()


@breaks(
    "loads_are_told",
    a_load_before_others,
    "A waits for KV, however nobody loads it",
)
def _a_load_that_nobody_begins(seen: Transition) -> None:
    output_of(seen).kv_loads.clear()
    seen.loads_after = {}


@breaks(
    "loads_begin_when_they_may",
    a_load_before_others,
    "loads of [] begin, due are ['A']",
    "deferred are the loads {'A': 1}, expected {}",
)
def _a_load_that_waits_for_nothing(seen: Transition) -> None:
    output_of(seen).kv_loads.clear()
    seen.loads_after = {}
    seen.after.deferred_loads["A"] = 1


@breaks("loads_are_told", a_load_before_others, "KV is loaded for C, which does not wait for it")
def _a_load_for_another(seen: Transition) -> None:
    loads = output_of(seen).kv_loads
    loads["C"] = loads["A"]


@breaks(
    "loads_are_told",
    a_load_before_others,
    "tokens 0 to 10 of A are loaded into [1, 3], the store has 8 and the blocks for them are "
    "[1, 2]",
)
def _a_load_into_blocks_of_another(seen: Transition) -> None:
    output_of(seen).kv_loads["A"] = KVLoad(0, 10, [1, 3])


@breaks(
    "loaded_tokens_are_counted",
    a_load_before_others,
    "A is WAITING_FOR_REMOTE_KVS with num_computed_tokens=0, expected 8",
)
def _a_load_counts_for_nothing(seen: Transition) -> None:
    seen.after.requests["A"].num_computed_tokens = 0


@breaks(
    "loaded_tokens_are_counted",
    a_load_in_part,
    "A is WAITING_FOR_REMOTE_KVS with num_computed_tokens=8, expected 4",
)
def _what_did_not_arrive_counts(seen: Transition) -> None:
    seen.after.requests["A"].num_computed_tokens = 8


@breaks("requests_are_conserved", a_load_before_others, "A waits with status WAITING")
def _a_load_is_forgotten(seen: Transition) -> None:
    seen.after.requests["A"].status = "WAITING"


@breaks(
    "block_tables_are_exact",
    a_load_before_others,
    "A needs 2 blocks, however it holds [1, 2, 4]",
)
def _a_block_beside_a_load(seen: Transition) -> None:
    seen.after.requests["A"].block_ids = [1, 2, 4]


@breaks("nobody_overtakes", a_deferred_load, "A is admitted while its KV is being loaded")
def _an_admission_before_the_load_ends(seen: Transition) -> None:
    seen.after.running.append("A")


@breaks(
    "nobody_overtakes",
    a_load_beside_a_prompt,
    "served are ['A'], however the ready ones stood in the order ['B', 'A']",
)
def _a_load_overtakes(seen: Transition) -> None:
    seen.after.running.clear()


@breaks(
    "what_is_loaded_is_not_zeroed",
    a_load_before_others,
    "[2] are zeroed while KV of A is loaded there",
)
def _a_load_is_zeroed(seen: Transition) -> None:
    output_of(seen).new_block_ids_to_zero = [2, 3]


@breaks(
    "what_is_loaded_is_not_zeroed",
    an_admission_after_a_load_in_part,
    "KV of A did not arrive in [2], zeroed are [3]",
)
def _what_did_not_arrive_is_not_zeroed(seen: Transition) -> None:
    output_of(seen).new_block_ids_to_zero = [3]


@breaks(
    "loads_begin_when_they_may",
    a_deferred_load,
    "loads of ['A'] begin, due are []",
    "deferred are the loads {}, expected {'A': 1}",
)
def _a_load_does_not_wait(seen: Transition) -> None:
    seen.loads_after = {"A": KVLoad(0, 8, [3, 4])}
    output_of(seen).kv_loads |= seen.loads_after
    seen.after.deferred_loads.clear()


ONE_BLOCK_SHORT = (
    "A begins a load, for which 5 blocks must be free "
    "(2 for what is loaded, 3 for prompts in part), however 4 are"
)


@breaks(
    "loads_leave_room_for_prefills",
    a_load_beside_a_prompt,
    ONE_BLOCK_SHORT,
)
def _a_prompt_that_needs_a_block_more(seen: Transition) -> None:
    seen.before.requests["B"].num_tokens = 13


@breaks(
    "loads_leave_room_for_prefills",
    a_load_beside_a_reserve,
    "A begins a load, for which 7 blocks must be free "
    "(3 for its whole sequence, 3 reserved for who runs, 1 as the watermark), however 6 are",
)
def _a_reserve_that_needs_a_block_more(seen: Transition) -> None:
    seen.after.requests["B"].num_tokens = 13


@breaks(
    "loads_leave_room_for_prefills",
    a_load_beside_a_prompt,
    ONE_BLOCK_SHORT,
)
def _an_output_that_is_computed_again_needs_a_block_more(seen: Transition) -> None:
    seen.before.requests["B"].num_prompt_tokens = 1
    seen.before.requests["B"].num_tokens = 13


@breaks(
    "blocks_are_kept_back_while_written",
    an_abort_in_flight,
    "kept back are none, due are [1, 5] until 2 steps return; [3, 4] until the load for A ends",
)
def _written_blocks_are_free(seen: Transition) -> None:
    seen.after.retained.clear()


@breaks(
    "blocks_are_kept_back_while_written",
    a_step_that_is_waited_for,
    "kept back are [1, 2] until 2 steps return, due are [1, 2] until 1 step returns",
)
def _a_step_that_does_not_count(seen: Transition) -> None:
    seen.after.retained = [RetainedBlocks([1, 2], 2)]


@breaks(
    "nobody_is_preempted_for_nothing",
    a_preemption_where_blocks_are_kept,
    "B is preempted, however a step in flight writes its blocks: none is free",
)
def _a_victim_is_in_flight(seen: Transition) -> None:
    seen.in_flight = seen.in_flight_after
    seen.in_flight[0].output.num_scheduled_tokens["B"] = 1
