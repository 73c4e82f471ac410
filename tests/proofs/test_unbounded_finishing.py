from __future__ import annotations

import attrs
import pytest

from proofs.unbounded import line, watch
from proofs.unbounded.actions import abort, add_request, prove_action, schedule, update
from proofs.unbounded.finishing import GAINS, RESTS, judge_first, stays_first, waits_closer
from proofs.unbounded.line import READY, judge_line, keeps_order, keeps_places, nothing
from proofs.unbounded.progress import assumptions_of, running_head, waiting_head
from proofs.unbounded.state import ASYNCHRONOUS, DIALECTS, SYNCHRONOUS
from spec.actions import AddRequest, Schedule, UpdateFromOutput
from spec.block_pool import CountedBlockPool
from spec.interface import NewRequest, SchedulerConfig
from spec.model import Model
from spec.scheduler import ReferenceScheduler


def drop_assume(question):
    """The question of any state at all that satisfies the invariant."""
    return attrs.evolve(question, assume=lambda _: {})


# ---- nothing that is assumed can be dropped ------------------------------------------------------

NEEDED = {
    "one step is in flight: places": (schedule, keeps_places()),
    "one step is in flight: readiness": (nothing, drop_assume(READY)),
    "who is ahead is ready": (schedule, keeps_order()),
    "nothing of the first is in flight": (nothing, drop_assume(GAINS)),
}


@pytest.mark.parametrize("dropped", NEEDED)
def test_no_assumption_about_steps_in_flight_can_be_dropped(dropped):
    """With any number of steps in flight the proof fails where one of them is needed."""
    action, question = NEEDED[dropped]
    assert prove_action(action, ASYNCHRONOUS, question).unproved is not None


FIRST = [
    (make, is_running, dialect, each)
    for dialect in (SYNCHRONOUS, ASYNCHRONOUS)
    for make, is_running in ((running_head, True), (waiting_head, False))
    for each in assumptions_of(dialect, is_running=is_running)
]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "is_running", "dialect", "dropped"), FIRST)
def test_no_assumption_about_the_first_can_be_dropped(make, is_running, dialect, dropped):
    """Without any one of them the proof that the first has less left after a step fails."""
    kept = [each for each in assumptions_of(dialect, is_running=is_running) if each is not dropped]
    assert prove_action(schedule, dialect, stays_first(make(*kept))).unproved is not None


def test_the_first_rests_while_its_last_token_is_in_flight():
    """That a step only leaves the first alone is all there is: it need not gain a token then."""
    assert prove_action(schedule, ASYNCHRONOUS, stays_first(RESTS)).unproved is not None


@pytest.mark.parametrize("action", [add_request, abort, update])
@pytest.mark.parametrize("question", [line.BETWEEN, waits_closer(returns=True)])
def test_what_is_shown_between_steps_is_no_contradiction(action, question):
    """Where a proof ends it does not follow that nothing is so, hence its assumptions can hold."""
    absurd = attrs.evolve(question, extras=question.extras | {"end": lambda _: {"nothing": False}})
    assert "nothing" == prove_action(action, ASYNCHRONOUS, absurd).unproved.clause


# ---- the same on plain integers ------------------------------------------------------------------


FCFS = [each for each in DIALECTS if not each.is_ranked]


@pytest.mark.parametrize("dialect", FCFS, ids=lambda each: each.name)
def test_no_run_breaks_what_is_proved(dialect):
    """Random runs, synchronous and asynchronous, never break the line or rob its first."""
    judges = [judge_line, judge_first]
    failures = [watch.run_once(dialect, judges, seed)[1] for seed in range(20)]
    assert [None] * 20 == failures


def test_a_run_shows_a_request_passed_by_others():
    """With two steps in flight, whoever waits for its voided steps is passed."""

    def judge(before, after, output):
        return judge_line(attrs.evolve(before, not_ready=frozenset()), after, output)

    failure = watch.find_breach([ASYNCHRONOUS], [judge])
    assert failure is not None
    assert "end: who is ahead stays ahead" == failure.obligation


# ---- where it stops: requests that starve --------------------------------------------------------


class Engine:
    """A scheduler, and a worker that lets a number of steps be in flight when one is planned."""

    def __init__(self, num_in_flight, **fields):
        config = SchedulerConfig(max_num_batched_tokens=2, block_size=1, **fields)
        self.scheduler = ReferenceScheduler(config, CountedBlockPool(config.num_blocks))
        self.model = Model(None, self.scheduler)
        self.num_in_flight = num_in_flight

    def add(self, request_id, num_prompt_tokens, max_tokens, priority=0):
        """Lets a request arrive."""
        new = NewRequest(
            request_id=request_id,
            prompt_token_ids=(0,) * num_prompt_tokens,
            max_tokens=max_tokens,
            priority=priority,
            arrival_time=float(self.model.num_arrivals),
        )
        self.model.do(AddRequest(new))

    def step(self):
        """Plans a step, and waits for the oldest one if too many are in flight."""
        self.model.do(Schedule())
        if len(self.model.in_flight) > self.num_in_flight:
            sampled = {name: [0] for name in self.model.live_samplers()}
            self.model.do(UpdateFromOutput(sampled))

    def run(self, request_id, num_steps, arrive):
        """Returns the step in which a request ends; None if it does not, and gets no token."""
        for number in range(num_steps):
            arrive(self, number)
            self.step()
            if request_id not in self.scheduler.requests:
                return number
        assert 0 == self.scheduler.requests[request_id].num_output_tokens
        return None


def add_one_in_five_steps(engine, number):
    """A short request, again and again; the long one comes with the first of them."""
    if number % 5 == 0:
        engine.add(f"short {number}", 2, 4)
    if number == 0:
        engine.add("long", 5, 1)


@pytest.mark.parametrize(("num_in_flight", "ends_in"), [(0, 4), (1, 8), (2, None)])
def test_a_request_that_is_passed_again_and_again_starves(num_in_flight, ends_in):
    """With two steps in flight a steady arrival of short prompts preempts a long one for ever.

    Each time it is not ready at once, and the next one passes it. With one step in flight nobody
    can, and it ends.
    """
    engine = Engine(
        num_in_flight,
        max_num_seqs=2,
        max_model_len=8,
        num_blocks=8,
        async_scheduling=num_in_flight > 0,
    )
    assert ends_in == engine.run("long", 500, add_one_in_five_steps)
    if ends_in is None:
        assert 100 == engine.scheduler.requests["long"].num_preemptions


def add_urgent_ones(engine, number):
    """One that is urgent with each step; the patient one was there before them."""
    if number == 0:
        engine.add("patient", 1, 1, priority=1)
    engine.add(f"urgent {number}", 1, 1)


@pytest.mark.parametrize(("policy", "ends_in"), [("fcfs", 0), ("priority", None)])
def test_priority_lets_a_request_starve(policy, ends_in):
    """That everybody finishes is a claim about first come, first served."""
    engine = Engine(0, max_num_seqs=1, max_model_len=4, num_blocks=4, policy=policy)
    assert ends_in == engine.run("patient", 100, add_urgent_ones)
