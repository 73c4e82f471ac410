from __future__ import annotations

import io
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner
from rich.console import Console

from benchmarks.bugs_table import NOT_ASKED, read_checkers
from checkers.cli import main
from checkers.errors import HarnessError
from checkers.mutations import bugs  # noqa: F401, importing it registers the bugs
from checkers.mutations.catch import catch, check_baseline
from checkers.mutations.command import check_baselines, choose_mutations, judge, mutate, sum_up
from checkers.mutations.look import Look
from checkers.mutations.registry import MUTATIONS, mutation, planted
from checkers.mutations.unplanted import UNPLANTED
from checkers.mutations.workers import Task, run_all
from checkers.progress import Progress
from spec.registry import INVARIANTS

ROOT = Path(__file__).parents[2]
QUICK = MUTATIONS["the_budget_is_one_too_many"]
LOOPS = MUTATIONS["the_watermark_binds_a_lone_request"]
RARE = MUTATIONS["one_result_fills_all_placeholders"]
PUBLIC = """
nano-vllm #274, nano-vllm #210, nano-vllm 9fa256a, nano-vllm #265, nano-vllm #144, vLLM #23347,
vLLM #23316, vLLM #28558, vLLM #57580, vllm-ascend #822, vllm-ascend #2714, vLLM #11562,
vLLM #10507, TRT-LLM #11731, TGI #2489, vLLM #11186, vLLM #30320, vLLM #26317, vLLM #28473,
vLLM #30916, vLLM #48245, vLLM #46066, vLLM #49860, vLLM #27922, vLLM #10730, vLLM #39734,
inference-sim #349, inference-sim #1057, inference-sim #196, inference-sim #183, inference-sim #293,
LMDeploy #4564, LMDeploy #4100, LMDeploy #4532, LightLLM #1057, LightLLM #1201, LightLLM #477,
mini-sglang #46, mini-sglang #80, mini-sglang #47, mini-sglang #142, xLLM #828, SGLang #14872,
SGLang #34149, tt-xla #5664, TRT-LLM #10943, TRT-LLM #12834, vLLM #36755, vLLM #44701, vLLM #46899,
vLLM #40004, vLLM #49075, vLLM #6266, vLLM #57104, vLLM #45388, vLLM #47728, vLLM #18631,
vLLM #32255, vLLM #33377, vLLM #46240, vLLM #45138, vLLM #42568, vllm-ascend #8279,
vllm-ascend #10559, vLLM #31857, vLLM #55733, vLLM #29387, vLLM #46281, vLLM #40027, vLLM #26400,
vLLM #52179, vLLM #27462
"""
"""Public bugs of serving engines that were looked at, by the first report of each."""


@pytest.fixture
def progress():
    """Progress that nobody sees."""
    return Progress(Console(file=io.StringIO()))


def outcomes(tasks, **limits):
    """What came of tasks, by name."""
    begun = []
    found = {task.name: seen for task, seen in run_all(tasks, 2, begun.append, **limits)}
    assert begun == list(tasks)
    return found


# ---- the registry --------------------------------------------------------------------------------


def test_every_public_bug_is_planted_or_has_a_reason():
    """No bug that was looked at is forgotten, and none is planted and excused at once."""
    looked_at = set(re.split(r",\s+", PUBLIC.strip()))
    planted_ones = {source for wrong in MUTATIONS.values() for source in wrong.sources}
    assert set() == looked_at - planted_ones - UNPLANTED.keys()
    assert set() == planted_ones & UNPLANTED.keys()
    assert set() == UNPLANTED.keys() - looked_at


def test_each_bug_names_a_rule_that_there_is():
    """Who must notice is an invariant, lockstep, a fault of the engine, or liveness."""
    others = {"same_as_spec", "somebody_gets_a_token", "engine_raises"}
    named = {wrong.caught_by for wrong in MUTATIONS.values()}
    assert set() == named - INVARIANTS.keys() - others


def test_a_name_is_planted_once():
    """A second bug of the same name is refused."""

    def one_seat_too_many(original):
        """Says something."""

    with pytest.raises(ValueError, match="one_seat_too_many is registered twice"):
        mutation(target="", setting="tiny", caught_by="")(one_seat_too_many)


def test_a_bug_says_what_goes_wrong():
    """A bug without a docstring is refused."""

    def nameless(original): ...

    with pytest.raises(ValueError, match="nameless has no docstring"):
        mutation(target="", setting="tiny", caught_by="")(nameless)


@pytest.mark.parametrize("wrong", MUTATIONS.values(), ids=lambda wrong: wrong.name)
def test_a_bug_replaces_its_method(wrong):
    """Each bug names a method that there is, and replaces it as long as it is planted."""
    with planted(wrong):
        pass
    name = wrong.target.rpartition(".")[2].rpartition(":")[2]
    assert name == wrong.plant(print).__name__


# ---- one bug -------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [QUICK, LOOPS, RARE], ids=lambda wrong: wrong.name)
def test_a_bug_is_caught_and_our_engine_is_not(wrong):
    """What the checker sees with the bug it does not see without."""
    assert wrong.caught_by in catch(wrong).broken
    assert ((), 0) == attrs.astuple(check_baseline(wrong))[:2]


JUDGED = [
    (Look(broken=(QUICK.caught_by, "same_as_spec"), num_actions=2), "caught", "holds"),
    (Look(), "missed", "violated"),
    (Look(broken=("same_as_spec",), num_actions=2), "misnamed", "violated"),
    ("was ended by SIGKILL", "ended", "undetermined"),
]


@pytest.mark.parametrize(("answer", "outcome", "verdict"), JUDGED, ids=[row[1] for row in JUDGED])
def test_only_its_own_rule_catches_a_bug(answer, outcome, verdict):
    """A bug that only another rule noticed, or none, is a finding; a dead process says nothing."""
    check = judge(QUICK, answer)
    assert (outcome, verdict) == (check.facts["outcome"], check.verdict)
    assert (verdict != "holds") == bool(check.findings)


def test_a_named_bug_is_told_in_full(progress):
    """Where a bug is named, the run that shows it stands in the report."""
    *_, check = mutate([QUICK.name], 1, progress)
    assert "add_request" in check.explanation
    assert check.explanation.startswith(f"{QUICK.name}: {QUICK.rule}")


def test_an_unknown_bug_is_refused():
    """A name that nobody has planted is an input error."""
    with pytest.raises(HarnessError, match="bug 'nobody' is unknown"):
        choose_mutations(["nobody"])


# ---- our engine as it is -------------------------------------------------------------------------


def test_bugs_of_one_setting_share_a_baseline():
    """Our engine is looked at once for each setting and way to look."""
    asked = []
    in_plain = [wrong for wrong in MUTATIONS.values() if wrong.setting.name == "plain"]

    def run(tasks):
        asked.extend(tasks)
        return ((task, Look()) for task in tasks)

    assert "holds" == check_baselines(in_plain, run).verdict
    assert [True] == [task.is_baseline for task in asked]


BASELINES = [(Look(broken=("same_as_spec",)), "violated"), ("was ended", "undetermined")]


@pytest.mark.parametrize(("answer", "verdict"), BASELINES, ids=["broken", "ended"])
def test_no_bug_is_planted_in_an_engine_that_does_not_hold(answer, verdict, progress, monkeypatch):
    """A rule that our engine breaks as it is says nothing of a bug, so that is the report."""

    def run_badly(tasks, num_workers, on_start):
        return ((task, answer) for task in tasks)

    monkeypatch.setattr("checkers.mutations.workers.run_all", run_badly)
    (check,) = mutate([QUICK.name], 1, progress)
    assert verdict == check.verdict


# ---- processes -----------------------------------------------------------------------------------


def test_processes_answer_for_every_task():
    """Each task is answered once, baselines with nothing."""
    tasks = [Task(QUICK.name), Task(LOOPS.name), Task("one_seat_too_many", is_baseline=True)]
    found = outcomes(tasks)
    assert {task.name for task in tasks} == found.keys()
    assert QUICK.caught_by in found[QUICK.name].broken
    assert () == found["one_seat_too_many"].broken


def test_a_process_that_is_too_late_is_ended():
    """A bug that takes too long is ended and told as such."""
    found = outcomes([Task(QUICK.name), Task(LOOPS.name)], limit_s=0.01)
    assert {"did not come to an end within 0.01 s"} == set(found.values())


def test_a_process_that_dies_takes_nobody_along():
    """A process that ends is told as such, and a new one does what is left."""
    found, begun = [], []
    tasks = [Task(QUICK.name), Task(LOOPS.name), Task(QUICK.name, is_baseline=True)]
    for _, seen in run_all(tasks, 1, begun.append):
        found.append(seen)
        if len(found) == 1:
            end_children()
    assert tasks == begun
    assert QUICK.caught_by in found[0].broken
    assert "was ended by SIGKILL" == found[1]
    assert () == found[2].broken


def end_children():
    """Ends the only process that works for this one."""
    for child in multiprocessing.active_children():
        child.kill()
        child.join()


def test_a_fault_of_ours_is_no_finding():
    """A task that makes no sense to the process is raised here."""
    with pytest.raises(HarnessError, match="nobody"):
        outcomes([Task("nobody")])


# ---- the command line ----------------------------------------------------------------------------


def test_the_report_is_for_machines_too():
    """JSON has the facts of each bug; JUnit a test case for each."""
    done = CliRunner().invoke(main, ["mutate", QUICK.name, "--format", "json"])
    report = json.loads(done.stdout)
    assert (0, "holds") == (done.exit_code, report["verdict"])
    facts = report["checks"][-1]["facts"]
    assert (QUICK.name, "caught", "search") == tuple(
        facts[name] for name in ("name", "outcome", "checker")
    )
    done = CliRunner().invoke(main, ["mutate", QUICK.name, "--format", "junit"])
    assert f'name="mutate  {QUICK.kind}  {QUICK.name}"' in done.stdout


def test_a_list_plants_nothing():
    """--list names every bug and every reason."""
    done = CliRunner().invoke(main, ["mutate", "--list"])
    assert 0 == done.exit_code
    for name in (*MUTATIONS, *UNPLANTED):
        assert name in done.stdout


def test_an_unknown_name_is_a_usage_error():
    """Exit code 2, and one sentence."""
    done = CliRunner().invoke(main, ["mutate", "nobody"])
    assert 2 == done.exit_code


def test_what_is_not_planted_has_its_reason_in_the_report():
    """The report of a whole run ends with the table of what is not planted."""
    check = sum_up(list(MUTATIONS.values()), Counter(caught=1))
    for name, reason in UNPLANTED.items():
        assert f"not planted {name}: {reason}" in check.lines


def test_ctrl_c_keeps_what_is_done():
    """Ctrl-C, which a terminal sends to all processes, prints what was found: undetermined."""
    code = "from checkers.cli import main; main()"
    command = [
        sys.executable,
        "-c",
        code,
        "mutate",
        QUICK.name,
        "whoever_preempts_takes_all_it_can",
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True, **pipes) as process:
        lines = [process.stdout.readline() for _ in range(4)]
        os.killpg(process.pid, signal.SIGINT)
        rest, errors = process.communicate()
    assert "Traceback" not in errors
    assert 3 == process.returncode
    assert "mutate  our engine as it is\n" == lines[0]
    assert "not checked: Ctrl-C" in rest


# ---- the table in docs/ --------------------------------------------------------------------------


def test_the_table_is_of_the_bugs_that_are_planted():
    """docs/bugs.md has each bug with its kind, rule and sources, who saw it, and each reason."""
    text = (ROOT / "docs" / "bugs.md").read_text()
    rows = [tuple(map(str.strip, line.split("|")[1:-1])) for line in text.splitlines()]
    written = {row[0].strip("`"): row[1:] for row in rows if len(row) == 7 and "`" in row[0]}
    expected = {
        name: (wrong.rule, wrong.kind, f"`{wrong.caught_by}`", ", ".join(wrong.sources))
        for name, wrong in MUTATIONS.items()
    }
    assert expected == {name: (*row[:3], row[5]) for name, row in written.items()}
    asked = read_checkers()
    assert {name: asked.get(name, NOT_ASKED) for name in MUTATIONS} == {
        name: row[4] for name, row in written.items()
    }
    assert UNPLANTED == {row[0]: row[1] for row in rows if len(row) == 2 and row[0] in UNPLANTED}


@pytest.mark.parametrize(
    "options",
    [
        ("--by", "search", "--systematic", "both"),
        ("--config", "tiny"),
        ("--sample", "5"),
        ("one_seat_too_many", "--file", "impl/slots.py"),
        ("one_seat_too_many", "--systematic", "engine"),
    ],
)
def test_no_option_goes_unheard(options):
    """What a known bug, or an edit, makes nothing of is refused in one sentence."""
    done = CliRunner().invoke(main, ["mutate", *options])
    assert 2 == done.exit_code
    assert "--systematic" in done.stderr
