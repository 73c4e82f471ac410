from __future__ import annotations

import attrs
import pytest
from click.testing import CliRunner

from checkers.cli import main
from checkers.errors import HarnessError
from gpu_conformance.axes.recorded_run import FOLDER, make_recorded_way
from gpu_conformance.bench import Bench
from gpu_conformance.command import Order
from gpu_conformance.registry import AXES
from gpu_conformance.report import check_baseline
from gpu_conformance.subject import make_subject
from gpu_conformance.work import Work, make_requests
from tests.gpu_conformance.support import SMALL, make_bench, run

ODD = "tests.gpu_conformance.odd_runners"
ECHO = "tests.gpu_conformance.support:Echo"


def make_odd(name, limit_s=60.0):
    """A bench with an odd runner."""
    subject = attrs.evolve(make_subject("tiny", f"{ODD}:{name}", "own", "cpu"), limit_s=limit_s)
    return Bench(subject, make_requests(SMALL))


def call(*arguments):
    """Calls the command."""
    return CliRunner().invoke(main, ["conform", *arguments])


# ---- what becomes of an answer -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Refills", "it had [41] for r0, and has [82] when the scheduler hears of it"),
        ("Forgets", "it.sampled_token_ids is None, expected a dict"),
    ],
)
def test_an_answer_that_is_changed_later_is_a_finding_of_the_runner(name, told):
    """With two steps in flight the scheduler would hear of other tokens than were returned."""
    outcome = run(make_odd(name), "async_depth", 2)
    assert ("no answer", "violated") == (outcome.first.kind, outcome.verdict)
    assert f"the answer of step 0 was changed after it was returned: {told}" == (
        outcome.first.evidence
    )


def test_an_answer_that_is_changed_after_the_scheduler_heard_of_it_is_none():
    """With one step at a time nobody looks at what was returned before."""
    assert "holds" == run(make_odd("Refills"), "batch_size", 2).verdict


def test_a_recorded_run_hears_of_a_step_when_it_was_recorded_to():
    """Where two steps were in flight, an answer that was filled anew in between is seen."""
    axis, way = AXES["recorded_run"], make_recorded_way(FOLDER / "async-preempt-aborts.jsonl.gz")
    assert "holds" == make_odd("Open").follow(axis, "async-preempt-aborts", way).verdict
    first = make_odd("Refills").follow(axis, "async-preempt-aborts", way).first
    assert "was changed after it was returned" in first.evidence


# ---- what is shown -------------------------------------------------------------------------------


def test_an_odd_runner_is_odd_in_one_thing():
    """What they are all made of shows bits, and holds."""
    bench = make_odd("Open")
    assert "holds" == check_baseline(bench, Order().arguments).verdict
    outcome = run(bench, "batch_size", 2)
    assert ("holds", True) == (outcome.verdict, outcome.tally.num_rows > outcome.tally.num_tokens)


@pytest.mark.parametrize(
    ("name", "verdict", "told"),
    [
        ("LogitsNaN", "violated", "r0 alone: NaN is in 3 of 3 rows of logits"),
        ("KvNaN", "violated", "r0 alone: NaN is in 5 of 5 rows of KV"),
        ("LogitsZero", "undetermined", "all 12 rows of logits are the same, whatever was computed"),
        ("KvZero", "undetermined", "all 68 rows of KV are the same, so they tell nothing"),
    ],
)
def test_bits_that_show_nothing_are_no_baseline(name, verdict, told):
    """NaN alone is a finding, and rows that are all the same would be so with wrong data, too."""
    check = check_baseline(make_odd(name), Order().arguments)
    assert verdict == check.verdict
    assert check.findings[0].startswith(told)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("LogitsEmpty", "get_logits() shows [1, 0] of float32 for r0, which samples 1 token; "),
        ("KvEmpty", "read_kv() shows [3, 0] of float32 for 3 tokens; expected is [3, all layers"),
        ("LogitsNone", "get_logits() shows None; expected is a dict of rows by request, in step 0"),
        ("LogitsBool", "shows [1, 128] of bool for r0, which samples 1 token; expected are real"),
        ("LogitsFp8", "shows [1, 128] of float8_e4m3fn for r0, which samples 1 token; expected "),
        ("LogitsSparse", "shows [1, 128] of float32 sparse_coo for r0, which samples 1 token"),
        ("LogitsFew", "shows [1, 1] of float32 for r0, which samples 1 token: [41]; expected are "),
        (
            "LogitsMeta",
            "shows [1, 128] of float32 on meta for r0, which samples 1 token; expected ",
        ),
        ("KvNested", "read_kv() shows a nested tensor for 3 tokens; expected is [3, all layers, "),
        ("KvComplex", "read_kv() shows [3, 1] of complex64 for 3 tokens; expected are real"),
        ("LogitsHang", "get_logits() did not return within 0.3 s, in step 0 (tokens: r0 3)"),
        ("KvHang", "read_kv() did not return within 0.3 s, in step 0 (tokens: r0 3)"),
        ("ClearsItsStep", "changed num_scheduled_tokens of the step that it was handed from "),
        ("SamplesFarAbove", "samples [1099511627776] for r0; no token is above 2147483647, in "),
    ],
)
def test_what_is_shown_wrongly_is_told_in_one_sentence(name, told):
    """The step and what was shown are named, and no error of ours is."""
    limit_s = 0.3 if name.endswith("Hang") else 60.0
    check = check_baseline(make_odd(name, limit_s), Order().arguments)
    assert "violated" == check.verdict
    assert check.findings[0].startswith("no answer: r0 alone: ")
    assert told in check.findings[0]
    assert "in step 0 (tokens: r0 3)" in check.findings[0]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Narrow", "get_logits() shows [1, 102] of float32 for r0, which samples 1 token; "),
        ("Double", "read_kv() shows [3, 1] of float64 for 3 tokens; a row before it was [1] of "),
    ],
)
def test_rows_of_another_kind_than_alone_are_no_answer(name, told):
    """A width, or a number type, that depends on the batch is told with what was before."""
    first = run(make_odd(name), "batch_size", 2).first
    assert "no answer" == first.kind
    assert told in first.evidence
    assert first.evidence.endswith("of float32, in step 0 (tokens: r0 3, r1 17)")


def test_nan_is_told_where_it_differs():
    """How far NaN is off is no number."""
    first = run(make_odd("Odd"), "batch_size", 2).first
    assert ("logits", "NaN, between the two greatest lie 1.0e+00") == (first.kind, first.evidence)


def test_what_is_kept_of_the_baseline_is_a_copy():
    """Memory that the runner writes over does not change what a request has computed alone."""
    outcome = run(make_odd("KvRefilled"), "batch_size", 2)
    assert ("violated", "KV") == (outcome.verdict, outcome.first.kind)


def test_kv_of_8_bits_is_compared():
    """A cache may be kept in fewer bits than logits."""
    bench = make_odd("KvFp8")
    assert "holds" == check_baseline(bench, Order().arguments).verdict
    assert "holds" == run(bench, "batch_size", 2).verdict


def test_a_runner_that_is_never_made_is_wrong_usage():
    """It is told as what cannot be made, with the sentence that it hangs."""
    with pytest.raises(HarnessError, match=r"cannot be made of .*: it did not return within 0.3 s"):
        run(make_odd("HangsAtBirth", 0.3), "batch_size", 2)


# ---- what is said of all -------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "verdict"), [(4, "holds"), (5, "undetermined")])
def test_drafts_are_reached_if_so_many_are_verified(value, verdict):
    """After the first of 5 tokens 4 are left to be guessed, whatever is asked for."""
    assert verdict == run(make_bench(work=Work((3, 17), 5)), "draft_tokens", value).verdict


def test_tokens_alone_are_shown_as_such():
    """The cell of a runner without bits has its tokens, and the last line says what that is."""
    lines = call("--backend", ECHO, "--axis", "batch_size=2").stdout.splitlines()
    assert "  batch_size  35 tokens, 0 differ" == lines[-2]
    assert lines[-1].endswith("model on this machine; tokens only, weaker than bits")
    both = ("--backend", ECHO, "--backend", f"{ODD}:Open", "--axis", "batch_size=2")
    assert (
        call(*both)
        .stdout.splitlines()[-1]
        .endswith(
            "; bits, not what they mean; where no bits are shown, tokens only, weaker than bits"
        )
    )


def test_a_number_type_is_for_our_backends():
    """A foreign runner has its own, so that asking it for another is refused."""
    done = call("--backend", ECHO, "--dtype", "bfloat16")
    assert (2, "") == (done.exit_code, done.stdout)
    assert f"{ECHO} has a number type of its own: leave out --dtype" in done.output
