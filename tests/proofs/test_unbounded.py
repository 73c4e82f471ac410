from __future__ import annotations

import attrs
import pytest

from proofs.mutants import MUTANTS, planted
from proofs.prove import THEOREMS
from proofs.symbolic.prover import FrameError, Prover
from proofs.theorem import Obligation, Proof, ignore
from proofs.unbounded import watch
from proofs.unbounded.actions import Question, prove_action, schedule
from proofs.unbounded.progress import assumptions_of, judge_progress, running_head, waiting_head
from proofs.unbounded.settle import settle
from proofs.unbounded.state import ASYNCHRONOUS, SYNCHRONOUS
from spec.block_pool import CountedBlockPool
from spec.interface import ModelRunnerOutput, NewRequest, SchedulerConfig
from spec.scheduler import ReferenceScheduler
from tests.proofs.nights import at_night

ALL = [each for each in THEOREMS.values() if each.scope == "unbounded"]


def with_marks(theorem, *more):
    """A case of a theorem; those that take long wait for the night."""
    return pytest.param(theorem, *more, marks=[at_night] if theorem.is_slow else [])


UNBOUNDED = [with_marks(each) for each in ALL]
PAIRS = [with_marks(each, name) for each in ALL for name in each.mutants]


@pytest.mark.slow
@pytest.mark.parametrize("theorem", UNBOUNDED, ids=lambda each: each.name)
def test_a_theorem_is_proved(theorem):
    """Every obligation follows, for any number of requests; none is left open."""
    proof = theorem.prove(ignore)
    assert [] == proof.undecided
    assert "proved" == proof.verdict


@pytest.mark.slow
@pytest.mark.parametrize(("theorem", "mutant"), PAIRS, ids=lambda each: getattr(each, "name", each))
def test_a_mutant_of_the_spec_is_refuted(theorem, mutant):
    """A wrong spec is not proved, and a run on plain integers shows that it is wrong."""
    with planted(MUTANTS[mutant]):
        proof = theorem.prove(ignore)
    assert "refuted" == proof.verdict
    assert proof.failure.lines


def test_what_the_solver_leaves_open_is_undetermined(monkeypatch):
    """An obligation on which the solver gives up is not proved, nor is what needs it."""
    monkeypatch.setattr(watch, "NUM_RUNS", 2)
    prover = Prover(limit=1)
    factors = [prover.any_integer(name).term for name in "abc"]
    a, b, c = factors
    prover.prove(lambda: prover.oblige("no cube is two cubes", a * a * a + b * b * b != c * c * c))
    said = []
    proof = Proof("example", say=said.append)
    settle(proof, ignore, [("example", SYNCHRONOUS, prover)])
    assert "undetermined" == proof.verdict
    # Runs on plain integers take long, so the progress tells of each.
    assert said[0].startswith("example is not proved; random runs are looked through")
    assert said[1].endswith(f"{SYNCHRONOUS.name}, run 2 of 2")
    assert 1 == len(proof.undecided)


# ---- what the oldest request needs ---------------------------------------------------------------

NEEDS = [
    (make, is_running, dialect, each)
    for dialect in (SYNCHRONOUS, ASYNCHRONOUS)
    for make, is_running in ((running_head, True), (waiting_head, False))
    for each in assumptions_of(dialect, is_running=is_running)
]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "is_running", "dialect", "dropped"), NEEDS)
def test_no_assumption_of_progress_can_be_dropped(make, is_running, dialect, dropped):
    """Without any one of its assumptions the proof that the oldest gains a token fails."""
    kept = [each for each in assumptions_of(dialect, is_running=is_running) if each is not dropped]
    assert prove_action(schedule, dialect, make(*kept)).unproved is not None


@pytest.mark.parametrize("exempt", ["not_ready", "at_the_end"])
def test_who_waits_for_a_step_in_flight_may_gain_nothing(exempt):
    """A run shows the oldest without a token while its stale or its last token is in flight."""

    def judge(before, after, output):
        return judge_progress(attrs.evolve(before, **{exempt: frozenset()}), after, output)

    failure = watch.find_breach([ASYNCHRONOUS], [judge])
    assert failure is not None
    assert "planned: it gains a token" == failure.obligation


def scheduler_of(**fields):
    """A scheduler with a counted pool."""
    config = SchedulerConfig(
        **{"max_num_batched_tokens": 8, "max_num_seqs": 2, "max_model_len": 8} | fields
    )
    return ReferenceScheduler(config, CountedBlockPool(config.num_blocks))


def run_steps(scheduler, new, num_steps):
    """Runs a request; returns the tokens of each step."""
    scheduler.add_request(new)
    steps = []
    for _ in range(num_steps):
        output = scheduler.schedule()
        steps.append(dict(output.num_scheduled_tokens))
        sampled = {name: [0] for name in output.num_scheduled_tokens}
        scheduler.update_from_output(output, ModelRunnerOutput(sampled))
    return steps


def test_a_request_larger_than_the_pool_starves_running_or_waiting():
    """Without room for max_model_len tokens the oldest, all alone, gains nothing for ever."""
    pool = {"block_size": 2, "num_blocks": 1}
    long = NewRequest(request_id="a", prompt_token_ids=(0,) * 3, max_tokens=4)
    short = NewRequest(request_id="a", prompt_token_ids=(0,) * 2, max_tokens=4)
    assert [{}, {}] == run_steps(scheduler_of(**pool), long, 2)
    assert [{"a": 2}, {}, {}] == run_steps(scheduler_of(**pool), short, 3)


def test_min_tokens_before_length_needs_a_bound():
    """In the order of 0.16 a request with many min_tokens fills max_model_len and never ends."""
    scheduler = scheduler_of(
        block_size=2, num_blocks=2, max_model_len=4, stop_order="min_stop_length"
    )
    new = NewRequest(request_id="a", prompt_token_ids=(0, 0), max_tokens=5, min_tokens=5)
    assert [{"a": 2}, {"a": 1}, {}, {}] == run_steps(scheduler, new, 4)
    assert 4 == scheduler.requests["a"].num_tokens


# ---- the loop rule -------------------------------------------------------------------------------


class KeepsANumber(ReferenceScheduler):
    """Carries a number through a loop in an attribute that no proof knows."""

    def _begin_step(self):
        super()._begin_step()
        self.num_looked_at = 0


class WritesWhilePublishing(ReferenceScheduler):
    """Changes a counter in a loop that is said to change nothing."""

    def _publish_scheduled(self, request):
        request.num_preemptions += 1


@pytest.mark.parametrize(
    ("base", "said"), [(KeepsANumber, "num_looked_at"), (WritesWhilePublishing, "num_preemptions")]
)
def test_what_the_loop_rule_does_not_know_is_refused(base, said):
    """A loop that carries or writes what the rule keeps is an error, not a proof."""
    with pytest.raises(FrameError, match=said):
        prove_action(schedule, SYNCHRONOUS, Question(), base)


def test_a_path_that_brings_another_term_to_a_cut_is_refused():
    """All paths to a cut must look alike but for what the loop writes; else one stands for none."""
    prover = Prover()

    def body():
        is_left = prover.any_truth("left")
        prover.forget("a loop", (prover.any_integer("left" if is_left else "right").term,))

    with pytest.raises(FrameError, match="a loop"):
        prover.prove(body)


# ---- obligations as text -------------------------------------------------------------------------


def sampled_obligations() -> list[Obligation]:
    """Every twentieth obligation of the actions."""
    found: list[Obligation] = []
    THEOREMS["any_number_actions_keep_the_invariant"].prove(found.append)
    return found[::20]


def test_another_solver_agrees():
    """Exported as SMT-LIB text, obligations are proved by cvc5 as well."""
    pytest.importorskip("cvc5", reason="cvc5 is not installed")
    from proofs.recheck import ask_cvc5  # noqa: PLC0415  (needs the package)

    obligations = sampled_obligations()
    answers = {each.name: ask_cvc5(each.to_smt2()) for each in obligations}
    assert {name: ["unsat"] for name in answers} == answers
    assert len(obligations) > 20
