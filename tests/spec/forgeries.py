"""Correct transitions, and forgeries of them: one thing is changed, and an invariant says which."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

from attrs import frozen

from spec.interface import EngineCoreOutput, SchedulerConfig, SchedulerOutput
from spec.transition import Transition
from tests.spec.support import make_config, make_request
from tests.spec.transitions import Story

# ---- transitions of correct runs -----------------------------------------------------------------

Base = Callable[[], tuple[SchedulerConfig, Transition]]


def an_admission() -> tuple[SchedulerConfig, Transition]:
    """A goes on with its 7th token, B is admitted with 9, and C finds no seat."""
    config = make_config(max_num_seqs=2)
    story = Story(config, make_request("A", 6))
    story.run(1)
    story.add(make_request("B", 9))
    story.add(make_request("C", 3))
    return config, story.schedule()


def two_admissions() -> tuple[SchedulerConfig, Transition]:
    """A and B are admitted into four blocks, and take two each."""
    config = make_config(num_blocks=4)
    return config, Story(config, make_request("A", 8), make_request("B", 7)).schedule()


def an_admission_by_hit() -> tuple[SchedulerConfig, Transition]:
    """B hits the full block of A, who runs, and takes the two others of the pool."""
    config = make_config(num_blocks=3, enable_prefix_caching=True)
    story = Story(config, make_request("A", (5,) * 4))
    story.schedule()
    story.add(make_request("B", (5,) * 9))
    return config, story.schedule()


def a_preemption() -> tuple[SchedulerConfig, Transition]:
    """A takes a third block from B, who waits before C again."""
    config = make_config(num_blocks=4)
    story = Story(config, make_request("A", 8), make_request("B", 7))
    story.run(1)
    story.add(make_request("C", 3))
    return config, story.schedule()


def an_arrival() -> tuple[SchedulerConfig, Transition]:
    """C joins the queue behind B, while A runs in the only seat."""
    config = make_config(max_num_seqs=1)
    story = Story(config, make_request("A", 6), make_request("B", 3))
    story.run(1)
    return config, story.add(make_request("C", 3))


def a_return() -> tuple[SchedulerConfig, Transition]:
    """A and B get their first tokens; B's is its last, and goes to client 1."""
    config = make_config()
    story = Story(config, make_request("A", 6), make_request("B", 3, max_tokens=1, client_index=1))
    story.schedule()
    return config, story.update(A=7, B=8)


def an_abort() -> tuple[SchedulerConfig, Transition]:
    """B leaves, and A stays."""
    config = make_config()
    story = Story(config, make_request("A", 6), make_request("B", 3))
    story.run(1)
    return config, story.abort("B")


def a_step_ahead() -> tuple[SchedulerConfig, Transition]:
    """Two steps of A are in flight, and each samples a token for it."""
    config = make_config(async_scheduling=True)
    story = Story(config, make_request("A", 3))
    story.schedule()
    return config, story.schedule()


def a_voided_step() -> tuple[SchedulerConfig, Transition]:
    """The step in which B got 7 tokens returns, after B's preemption."""
    config = make_config(async_scheduling=True, num_blocks=4)
    story = Story(config, make_request("A", 8), make_request("B", 7))
    story.schedule()
    return config, story.schedule()


BASES: tuple[Base, ...] = (
    an_admission,
    two_admissions,
    an_admission_by_hit,
    a_preemption,
    an_arrival,
    a_return,
    an_abort,
    a_step_ahead,
    a_voided_step,
)


# ---- forgeries -----------------------------------------------------------------------------------


@frozen
class Forgery:
    """A change to a correct transition that an invariant objects to."""

    change: Callable[[Transition], None]
    invariant: str
    base: Base
    evidence: tuple[str, ...]

    def make(self) -> tuple[SchedulerConfig, Transition]:
        """The forged transition."""
        config, seen = self.base()
        forged = deepcopy(seen)
        self.change(forged)
        return config, forged


FORGERIES: list[Forgery] = []


def breaks(
    invariant: str, base: Base, *evidence: str
) -> Callable[[Callable[[Transition], None]], Callable[[Transition], None]]:
    """Lists a forgery with all that an invariant says of it."""

    def register(change: Callable[[Transition], None]) -> Callable[[Transition], None]:
        FORGERIES.append(Forgery(change, invariant, base, evidence))
        return change

    return register


def output_of(seen: Transition) -> SchedulerOutput:
    """The output of a step."""
    assert seen.outcome.output is not None
    return seen.outcome.output


def results_of(seen: Transition) -> dict[int, list[EngineCoreOutput]]:
    """What clients are sent."""
    assert seen.outcome.results is not None
    return seen.outcome.results


# budgets


@breaks(
    "token_budget_is_kept",
    an_admission,
    "17 tokens are scheduled, max_num_scheduled_tokens=16",
)
@breaks("input_budget_is_kept", an_admission, "17 tokens are batched, max_num_batched_tokens=16")
def _a_token_too_many(seen: Transition) -> None:
    output_of(seen).num_scheduled_tokens["B"] = 16


@breaks("max_num_seqs_is_kept", an_admission, "3 requests run, max_num_seqs=2")
def _a_seat_too_many(seen: Transition) -> None:
    seen.after.running.append("C")


# blocks


@breaks(
    "ref_cnt_counts_holders",
    an_admission,
    "block 1 has ref_cnt=2, however 1 block tables hold it",
    "block 9 has ref_cnt=1, however 0 block tables hold it",
)
def _holders_that_nobody_knows(seen: Transition) -> None:
    seen.after.ref_cnt |= {1: 2, 9: 1}


@breaks(
    "no_block_is_free_and_held",
    an_admission,
    "block 2 is free, however 1 block tables hold it",
)
def _a_held_block_is_free(seen: Transition) -> None:
    seen.after.free_block_ids.append(2)


@breaks(
    "no_block_is_free_and_held",
    a_preemption,
    "the free queue [3, 3] names a block twice",
)
def _a_block_is_free_twice(seen: Transition) -> None:
    seen.after.free_block_ids *= 2


@breaks(
    "blocks_are_conserved",
    a_preemption,
    "3 blocks are free or held, the pool has 4",
    "lost [3], new []",
    "num_free_blocks=1, however the free queue holds 0",
)
def _a_block_is_lost(seen: Transition) -> None:
    seen.after.free_block_ids.clear()


@breaks("blocks_are_conserved", a_preemption, "lost [3], new [5]")
def _a_block_changes_its_name(seen: Transition) -> None:
    seen.after.free_block_ids[:] = [5]


@breaks("block_tables_are_exact", an_admission, "A needs 2 blocks, however it holds [1]")
def _a_block_too_few(seen: Transition) -> None:
    seen.after.requests["A"].block_ids = [1]


@breaks("block_tables_are_exact", an_admission, "C needs 0 blocks, however it holds [6]")
def _a_block_of_one_who_waits(seen: Transition) -> None:
    seen.after.requests["C"].block_ids = [6]


@breaks("block_tables_are_exact", an_admission, "A holds a block twice: [1, 1]")
def _a_block_in_two_places(seen: Transition) -> None:
    seen.after.requests["A"].block_ids = [1, 1]


@breaks("new_blocks_are_zeroed", an_admission, "B is given [4], zeroed are [3, 5]")
def _an_old_block(seen: Transition) -> None:
    output_of(seen).new_block_ids_to_zero = [3, 5]


# queues


@breaks(
    "nobody_overtakes",
    an_admission,
    "served are ['C'], however the ready ones stood in the order ['B', 'C']",
)
def _another_is_admitted(seen: Transition) -> None:
    seen.after.running = ["A", "C"]


@breaks(
    "nobody_overtakes",
    a_voided_step,
    "B is admitted while output of its voided steps is in flight",
)
def _one_who_is_not_ready(seen: Transition) -> None:
    seen.before.waiting, seen.after.running = ["B"], ["A", "B"]
    seen.in_flight = seen.in_flight_after


@breaks(
    "no_admission_after_preemption",
    a_preemption,
    "['C'] are admitted in a step that preempted ['B']",
)
def _an_admission_beside_a_preemption(seen: Transition) -> None:
    seen.after.running.append("C")


@breaks(
    "requests_are_conserved",
    an_admission,
    "running ['A', 'B'], waiting [], however alive are ['A', 'B', 'C']",
    "the engine knows ['A', 'B', 'C', 'D'], alive are ['A', 'B', 'C']",
    "A runs with status WAITING",
)
def _one_too_few_and_one_too_many(seen: Transition) -> None:
    seen.after.waiting.clear()
    seen.after.requests["D"] = seen.after.requests["C"]
    seen.after.requests["A"].status = "WAITING"


@breaks("requests_are_conserved", an_arrival, "B waits with status RUNNING")
def _one_who_waits_and_runs(seen: Transition) -> None:
    seen.after.requests["B"].status = "RUNNING"


@breaks("queues_keep_their_order", an_admission, "running is ['B', 'A'], expected ['A', 'B']")
def _they_change_seats(seen: Transition) -> None:
    seen.after.running.reverse()


@breaks("queues_keep_their_order", a_preemption, "waiting is ['C', 'B'], expected ['B', 'C']")
def _a_victim_goes_to_the_tail(seen: Transition) -> None:
    seen.after.waiting.reverse()


@breaks("queues_keep_their_order", an_arrival, "waiting is ['C', 'B'], expected ['B', 'C']")
def _an_arrival_goes_to_the_head(seen: Transition) -> None:
    seen.after.waiting.reverse()


@breaks(
    "victims_are_the_last_served",
    a_preemption,
    "A is preempted, however B is served last of ['A', 'B']",
)
def _the_first_is_preempted(seen: Transition) -> None:
    output_of(seen).preempted_req_ids = ["A"]


@breaks(
    "nobody_is_preempted_for_nothing",
    a_preemption,
    "B is preempted, however 4 blocks were free before, all it asked for",
)
def _there_was_room(seen: Transition) -> None:
    seen.after.num_free_blocks += 5


@breaks(
    "victims_keep_only_their_tokens",
    a_preemption,
    "B is RUNNING with num_computed_tokens=7, num_output_placeholders=0, block_ids=[3]",
    "B had 8 tokens, has 7",
    "B is preempted, however the step computes 1 of its tokens",
)
def _a_victim_loses_the_wrong_things(seen: Transition) -> None:
    victim = seen.after.requests["B"]
    victim.status, victim.num_computed_tokens, victim.block_ids = "RUNNING", 7, [3]
    victim.num_tokens = 7
    output_of(seen).num_scheduled_tokens["B"] = 1


@breaks("victims_keep_only_their_tokens", a_preemption, "B is preempted, however it is unknown")
def _a_victim_is_gone(seen: Transition) -> None:
    del seen.after.requests["B"]


# counters


@breaks(
    "counters_are_monotone",
    an_admission,
    "A has num_computed_tokens=6, however it was given 1 tokens from 6 on",
)
def _nothing_was_computed(seen: Transition) -> None:
    seen.after.requests["A"].num_computed_tokens = 6


@breaks(
    "counters_are_monotone",
    an_admission,
    "B is admitted at token 0, however it had computed 4",
)
def _what_was_computed_is_forgotten(seen: Transition) -> None:
    seen.before.requests["B"].num_computed_tokens = 4


@breaks(
    "token_counts_follow_the_client",
    a_return,
    "A counts (prompt, output, all) = (7, 0, 7), its client knows (6, 1, 7)",
)
def _output_becomes_prompt(seen: Transition) -> None:
    request = seen.after.requests["A"]
    request.num_prompt_tokens, request.num_output_tokens = 7, 0


@breaks("preemptions_are_counted", a_preemption, "B has num_preemptions=0, 0 before")
def _a_preemption_is_not_counted(seen: Transition) -> None:
    seen.after.requests["B"].num_preemptions = 0


@breaks("preemptions_are_counted", an_arrival, "C has num_preemptions=1, 0 before")
def _an_arrival_was_preempted(seen: Transition) -> None:
    seen.after.requests["C"].num_preemptions = 1


@breaks(
    "computed_is_within_tokens",
    a_step_ahead,
    "A has num_computed_tokens=6, however at most 5 make sense",
)
def _a_token_that_nobody_samples(seen: Transition) -> None:
    seen.after.requests["A"].num_computed_tokens = 6


@breaks(
    "computed_is_within_tokens",
    a_step_ahead,
    "A has num_computed_tokens=4, however at most 2 make sense",
    "A has num_output_placeholders=-1",
)
def _a_negative_count(seen: Transition) -> None:
    seen.after.requests["A"].num_output_placeholders = -1


@breaks(
    "placeholders_count_pending_samples",
    a_step_ahead,
    "A has num_output_placeholders=1, 2 of its tokens are being sampled",
)
def _a_placeholder_too_few(seen: Transition) -> None:
    seen.after.requests["A"].num_output_placeholders = 1


@breaks(
    "placeholders_count_pending_samples",
    an_admission,
    "A has num_output_placeholders=1, 0 of its tokens are being sampled",
)
def _a_placeholder_without_async_scheduling(seen: Transition) -> None:
    seen.after.requests["A"].num_output_placeholders = 1


@breaks(
    "in_flight_tokens_are_counted",
    a_voided_step,
    "B has num_in_flight_tokens=0, however 7 are in flight",
    "B has num_stale_output_tokens=0, however 7 are voided",
)
def _a_victim_has_nothing_in_flight(seen: Transition) -> None:
    request = seen.after.requests["B"]
    request.num_in_flight_tokens = request.num_stale_output_tokens = 0


# grants and gates


@breaks(
    "scheduled_requests_run",
    an_admission,
    "A is given 0 tokens",
    "C is given 3 tokens, however running are ['A', 'B']",
)
def _nothing_and_somebody_else(seen: Transition) -> None:
    output_of(seen).num_scheduled_tokens |= {"A": 0, "C": 3}


@breaks("grants_are_maximal", an_admission, "B is given 8 tokens, however 9 are due")
def _a_token_too_few(seen: Transition) -> None:
    output_of(seen).num_scheduled_tokens["B"] = 8


@breaks(
    "work_is_conserved",
    an_admission,
    "['B', 'C'] wait, however 15 tokens of budget, 1 seats and 14 free blocks are left",
)
def _nobody_is_admitted(seen: Transition) -> None:
    del output_of(seen).num_scheduled_tokens["B"]
    seen.after.running, seen.after.waiting = ["A"], ["B", "C"]
    seen.after.num_free_blocks = 14


@breaks("admitted_sequences_fit", two_admissions, "B is admitted, it takes 3 blocks and 2 are free")
def _a_sequence_that_does_not_fit(seen: Transition) -> None:
    seen.after.requests["B"].num_tokens = 9


@breaks(
    "admitted_sequences_fit", an_admission_by_hit, "B is admitted, it takes 3 blocks and 2 are free"
)
def _a_hit_block_that_is_free(seen: Transition) -> None:
    # Then B's hit block is not shared, but takes a free one.
    seen.after.requests["A"].block_ids = [3]


# the worker


@breaks(
    "diff_is_sufficient",
    an_admission,
    "the worker believes that B holds [3, 4, 5], however the scheduler has [3, 4, 6]",
)
def _the_worker_is_told_another_block(seen: Transition) -> None:
    seen.after.requests["B"].block_ids = [3, 4, 6]


@breaks("diff_is_sufficient", an_admission, "B is sent as cached")
def _the_worker_has_lost_track(seen: Transition) -> None:
    assert seen.worker is not None
    seen.worker.diff.append("B is sent as cached")
    seen.worker.block_tables["B"] = []


@breaks("no_step_overwrites_kv", an_admission, "A and B both write block 1")
def _the_worker_overwrites(seen: Transition) -> None:
    assert seen.worker is not None
    seen.worker.writes.append("A and B both write block 1")


@breaks("steps_read_what_was_written", an_admission, "A reads block 1")
def _the_worker_reads_nothing(seen: Transition) -> None:
    assert seen.worker is not None
    seen.worker.reads.append("A reads block 1")


@breaks("published_blocks_were_written", a_return, "block 1 is published")
def _the_worker_knows_better(seen: Transition) -> None:
    seen.published_faults = ["block 1 is published"]


# outputs and ends


@breaks(
    "finished_ids_are_told_once",
    a_return,
    "finished_req_ids is [], however it was [] and ['B'] have ended",
)
def _an_end_is_not_noted(seen: Transition) -> None:
    seen.after.finished_req_ids.clear()


@breaks("finished_ids_are_told_once", an_admission, "the worker is told [], finished have ['Z']")
def _an_end_is_not_told(seen: Transition) -> None:
    seen.before.finished_req_ids.append("Z")


@breaks("finished_ids_are_told_once", an_admission, "['Z'] would be told again")
def _an_end_is_told_twice(seen: Transition) -> None:
    seen.before.finished_req_ids.append("Z")
    output_of(seen).finished_req_ids.append("Z")
    seen.after.finished_req_ids.append("Z")


@breaks("outputs_go_to_the_living", a_return, "Z receives [4] after its end")
def _the_dead_receive(seen: Transition) -> None:
    results_of(seen)[0].append(EngineCoreOutput("Z", [4]))


@breaks("outputs_go_to_the_living", a_return, "the output of B goes to client 0, its owner is 1")
def _a_stranger_receives(seen: Transition) -> None:
    results = results_of(seen)
    results[0] += results.pop(1)


@breaks("outputs_go_to_the_living", a_return, "outputs are for ['A'], however due for ['A', 'B']")
def _one_does_not_receive(seen: Transition) -> None:
    del results_of(seen)[1]


@breaks(
    "outputs_go_to_the_living",
    a_return,
    "outputs are for ['A', 'A', 'B'], however due for ['A', 'B']",
)
def _one_receives_twice(seen: Transition) -> None:
    results_of(seen)[0] *= 2


@breaks(
    "stops_are_in_order",
    a_return,
    "B is sent [8] with finish_reason=stop, however due are [8] with length",
)
def _a_wrong_reason(seen: Transition) -> None:
    results_of(seen)[1][0].finish_reason = "stop"


@breaks(
    "stops_are_in_order",
    a_return,
    "A is sent [9] with finish_reason=None, however due are [7] with None",
)
def _a_wrong_token(seen: Transition) -> None:
    results_of(seen)[0][0].new_token_ids = [9]


@breaks(
    "an_abort_ends_at_once",
    an_abort,
    "B was ended, however it is RUNNING",
)
def _an_abort_is_late(seen: Transition) -> None:
    seen.after.requests["B"] = seen.before.requests["B"]


@breaks("an_abort_ends_at_once", an_abort, "A was not ended, however it changed to None")
def _an_abort_takes_another_along(seen: Transition) -> None:
    del seen.after.requests["A"]


# claims


@breaks(
    "prompts_are_not_preempted",
    a_preemption,
    "B was admitted because its 7 prompt tokens fit, however it is preempted with 3 of them "
    "computed",
)
def _a_prompt_is_preempted(seen: Transition) -> None:
    seen.before.requests["B"].num_computed_tokens = 3
