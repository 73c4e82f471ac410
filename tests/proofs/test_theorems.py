from __future__ import annotations

import re

import attrs
import pytest

from proofs.bounded import BoundedTheorem, prove_bounded
from proofs.mutants import MUTANTS, planted
from proofs.prove import CORE, Outcome, select_core
from proofs.scenarios import FCFS, FCFS_MOST
from proofs.theorem import THEOREMS, Proof, Theorem, register
from tests.proofs.nights import at_night

BOUNDED = [each for each in THEOREMS.values() if isinstance(each, BoundedTheorem)]
PAIRS = [(each, name) for each in BOUNDED for name in each.mutants]


@pytest.fixture(scope="module")
def proofs():
    """What comes of every bounded theorem, without the slow states."""
    return {proof.name: proof for proof in prove_bounded(BOUNDED)}


@pytest.mark.parametrize("theorem", BOUNDED, ids=lambda each: each.name)
def test_a_theorem_comes_out_as_it_says(theorem, proofs):
    """Claims that are right are proved, and those known to be wrong are refuted with a state."""
    proof = proofs[theorem.name]
    assert theorem.expected == proof.verdict
    assert [] == proof.undecided
    assert (theorem.expected == "refuted") == bool(proof.failure and proof.failure.lines)


@pytest.mark.parametrize(("theorem", "mutant"), PAIRS, ids=lambda each: getattr(each, "name", each))
def test_a_mutant_of_the_spec_is_refuted(theorem, mutant):
    """A theorem notices each wrong specification that it names, with numbers that show it."""
    with planted(MUTANTS[mutant]):
        (proof,) = prove_bounded([theorem])
    assert "refuted" == proof.verdict
    assert proof.failure.lines


def test_every_mutant_is_noticed():
    """No mutant is left out of the test above, and every right theorem names one."""
    named = {name for each in THEOREMS.values() for name in each.mutants}
    assert set(MUTANTS) <= named
    assert [] == [e.name for e in THEOREMS.values() if e.expected == "proved" and not e.mutants]


def test_a_mutant_is_gone_afterwards():
    """`planted` gives the right method back, after an error too."""
    mutant = MUTANTS["there_is_always_a_seat"]
    theorem = THEOREMS["max_num_seqs_is_kept"]
    with pytest.raises(RuntimeError, match="stop"), planted(mutant):
        raise RuntimeError("stop")
    (proof,) = prove_bounded([theorem_of_first_scenario(theorem)])
    assert "proved" == proof.verdict


def theorem_of_first_scenario(theorem):
    """The same theorem, about its cheapest states only."""
    return attrs.evolve(theorem, scenarios=theorem.scenarios[:1])


def text_of(theorem_name, proofs):
    """The counterexample of a refuted theorem, as it is printed."""
    return "\n".join(proofs[theorem_name].failure.lines)


def test_the_whole_prompt_gate_lets_prompts_fight(proofs):
    """Two requests that have just arrived are admitted, and the second is preempted."""
    text = text_of("the_whole_prompt_gate_reserves_nothing", proofs)
    before, _, rest = text.partition("the call")
    assert 2 == before.count(" WAITING: 0 of ")
    assert 2 == rest.count("pass 2: admit ")
    assert rest.index("preempt r1: it is served last") > rest.index("admit r1 at token 0")
    assert "gap of" in rest.partition("preempt r1")[0]


def test_publishing_at_grant_leaves_what_nobody_computes(proofs):
    """A granted chunk is published, then taken back, and stays findable."""
    text = text_of("publishing_at_grant_is_safe", proofs)
    taken_back = re.search(r"take back the \d+ tokens that this step granted (r\d)", text)
    published = re.search(rf"{taken_back[1]} has \d+ tokens published", text)
    assert published.start() < taken_back.start()


def test_a_refutation_has_small_numbers(proofs):
    """No number of a printed state is larger than a reader can follow."""
    for name in ("the_whole_prompt_gate_reserves_nothing", "publishing_at_grant_is_safe"):
        numbers = [int(number) for number in re.findall(r"\b\d+\b", text_of(name, proofs))]
        assert max(numbers) <= 12


def some_theorem(**changes):
    """A theorem that is registered nowhere."""
    fields = {
        "name": "some_theorem",
        "statement": "Something holds.",
        "scope": "unbounded",
        "assumptions": (),
        "bounds": "",
        "prove": Proof,
        "mutants": ("there_is_always_a_seat",),
    }
    return Theorem(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"name": "budgets_are_kept"}, "exists"),
        ({"statement": ""}, "no statement"),
        ({"mutants": ()}, "no mutant"),
    ],
)
def test_the_registry_refuses_what_says_nothing(changes, complaint):
    """A theorem needs a name of its own, a statement, and a mutant that breaks it."""
    with pytest.raises(AssertionError, match=complaint):
        register(some_theorem(**changes))


def test_nothing_proved_is_undetermined():
    """A proof without an obligation, or with an open one, is no proof."""
    nothing = Proof("some_theorem")
    open_one = Proof("some_theorem", num_claims=2, undecided=["one: timeout"])
    assert ["undetermined"] * 2 == [nothing.verdict, open_one.verdict]
    assert "undetermined" == Outcome(some_theorem(), open_one).verdict


@pytest.mark.parametrize(
    ("expected", "num_claims", "verdict"), [("proved", 1, "holds"), ("refuted", 1, "violated")]
)
def test_a_wrong_claim_must_not_be_proved(expected, num_claims, verdict):
    """What is expected to be refuted and is proved instead counts as a failure."""
    proof = Proof("some_theorem", num_claims=num_claims)
    assert verdict == Outcome(some_theorem(expected=expected), proof).verdict


def test_the_core_is_a_choice_of_smaller_states():
    """The core names theorems, each once, and leaves the largest states out."""
    core = {each.name: each for each in select_core()}
    assert list(CORE) == list(core)
    theorem, in_core = (some["budgets_are_kept"] for some in (THEOREMS, core))
    assert {FCFS, FCFS_MOST} <= set(theorem.scenarios)
    assert (True, False) == (FCFS in in_core.scenarios, FCFS_MOST in in_core.scenarios)
    assert FCFS_MOST.label not in in_core.bounds


@pytest.mark.slow
@at_night
def test_the_slow_states_come_out_the_same():
    """Up to three running and three waiting requests, and every kind of step at two and two."""
    for proof in prove_bounded(BOUNDED, with_slow=True):
        assert THEOREMS[proof.name].expected == proof.verdict
