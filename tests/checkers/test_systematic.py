from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner
from rich.console import Console

import impl.lifecycle
from checkers.cli import main
from checkers.configs import change_setting, load_settings
from checkers.engines import load_engine
from checkers.errors import EngineFault, HarnessError
from checkers.explore import Budget, Explorer, make_root
from checkers.mutations.systematic import command, noted
from checkers.mutations.systematic.command import Choice, choose_mutants, mutate_all
from checkers.mutations.systematic.courses import Courses, fingerprint, make_course
from checkers.mutations.systematic.judge import Bench, Fate, validate_under
from checkers.mutations.systematic.mutants import (
    FILES,
    find_function,
    find_in_source,
    find_mutants,
    planted,
)
from checkers.mutations.systematic.patience import HangError, expecting_progress
from checkers.mutations.systematic.tour import make_menu, take_tour
from checkers.mutations.systematic.workers import LostWorkersError
from checkers.progress import Progress
from spec.model import Model
from spec.snapshot import freeze
from spec.transition import Outcome

ROOT = Path(__file__).parents[2]
SMALL = [load_settings()[name] for name in ("refusals", "tiny", "gates", "take-back")]
SAMPLE = 24
"""Mutants of each side that every test run judges; the nightly run judges all."""


@pytest.fixture(scope="module")
def bench():
    """What a few small settings have to show."""
    return Bench(Courses(SMALL))


@pytest.fixture
def progress():
    """Progress that nobody sees."""
    return Progress(Console(file=io.StringIO()))


def mutant(function, before, after):
    """The first mutant of a function that reads so."""
    file = function.partition(" ")[0]
    alike = (m for m in find_mutants(file) if m.function == function)
    return next(m for m in alike if (m.before, m.after) == (before, after))


# ---- edits ---------------------------------------------------------------------------------------

EDITS = [
    ("return a < b", {"a <= b", "return not a < b"}),
    ("return a >= 1", {"a >= 2", "a >= 0", "return not a >= 1"}),
    ("return a == b", {"a != b"}),
    ("return a not in b", {"a in b"}),
    ("return a is None", {"a is not None"}),
    ("return a + b", {"a - b"}),
    ("return a // b", {"a * b"}),
    ("return a and b", {"a or b", "return a", "return b", "return not (a and b)"}),
    ("return not a", {"return a"}),
    ("return True", {"return False"}),
    ("return f('text')", set()),
    ("return min(a, b)", {"max(a, b)"}),
    ("return a[0]", {"a[-1]", "a[1]"}),
    ("return a[-1]", {"a[0]", "-2", "-0"}),
    ("return b if a else c", {"b if not a else c"}),
    ("return [a for a in b if c]", {"for a in b if not c"}),
    ("a = b", set()),
    ("a: int = 1", {"a: int = 2", "a: int = 0"}),
    ("a.b = c", {"pass"}),
    ("a += b", {"a -= b", "pass"}),
    ("del a.b", {"pass"}),
    ("f(a)", {"pass"}),
    ("f(reversed(a))", {"f(a)", "pass"}),
    ("a.append(b)", {"a.insert(0, b)", "pass"}),
    ("a.insert(0, b)", {"a.append(b)", "a.insert(1, b)", "a.insert(-1, b)", "pass"}),
    ("a.pop()", {"a.pop(0)", "pass"}),
    ("a.pop(0)", {"a.pop()", "a.pop(1)", "a.pop(-1)", "pass"}),
    ("if a: f()", {"if not a", "pass"}),
    ("if a == b: return c", {"a != b", "pass"}),
    ("while a < b: f()", {"while not a < b", "a <= b", "pass"}),
    ("for a in b: break", {"pass"}),
]


@pytest.mark.parametrize(("source", "expected"), EDITS, ids=[source for source, _ in EDITS])
def test_each_small_edit_is_made(source, expected):
    """What is compared, calculated, decided, counted, done or put to an end is edited, and once."""
    found = [
        m.after for m in find_in_source("spec/x.py", f'def g():\n    """Doc."""\n    {source}')
    ]
    assert sorted(expected) == sorted(found)


@pytest.mark.parametrize("file", [*FILES["spec"], *FILES["engine"]])
def test_a_name_is_of_one_mutant(file):
    """Every file has mutants, each under a name of its own, in which no line number stands."""
    names = [m.name for m in find_mutants(file)]
    assert 0 < len(names) == len(set(names))
    moved = [m.name for m in find_in_source(file, "\n\n" + (ROOT / file).read_text())]
    assert names == moved


def test_a_mutant_is_run_by_whoever_calls_the_function():
    """Also by who has imported it by name; once the block is left, also by an error, it is gone."""
    wrong = mutant("impl/stop.py check_stop", "return None", "pass")
    original = impl.lifecycle.check_stop.__code__
    with pytest.raises(ZeroDivisionError), planted(wrong.patch):
        assert_runs(wrong)
    assert original is impl.lifecycle.check_stop.__code__


def assert_runs(wrong):
    """The mutant is what is called; then fails."""
    assert wrong.patch.code.co_code == impl.lifecycle.check_stop.__code__.co_code
    raise ZeroDivisionError


def test_a_property_and_a_constructor_are_mutated():
    """What stands behind a property is found, and a constructor that calls no other any more."""
    assert "num_tokens" == find_function("spec/request.py", "Request.num_tokens").__name__
    wrong = mutant("impl/scheduler.py FastScheduler.__init__", "super().__init__(config)", "pass")
    engine = load_engine("fast")
    with planted(wrong.patch), pytest.raises(EngineFault, match="has no attribute"):
        engine.build(SMALL[0].scheduler)


# ---- courses -------------------------------------------------------------------------------------


TOURED = [
    *[load_settings()[name] for name in ("tiny", "publish-corrected", "streaming-deadlock")],
    change_setting(load_settings()["remote-kv"], ("max_live_requests=1",), ()),
]


@pytest.mark.parametrize("setting", TOURED, ids=[setting.name for setting in TOURED])
def test_a_tour_takes_every_action_of_every_state(setting):
    """As many states and actions as the explorer finds, also where one run cannot see them all."""
    runs, num_states = take_tour(setting)
    taken = set()
    for actions in runs:
        model = make_root(setting)
        for action in actions:
            key = next(key for key, known in make_menu(model).items() if known == action)
            taken.add((freeze(model), key))
            model.do(action)
    explored = Explorer(setting).run(Budget())
    assert (explored.num_unique, explored.num_generated - 1) == (num_states, len(taken))


def test_a_wire_tells_what_is_reached(bench):
    """A statement counts as reached in the settings that run it, and in no other."""
    wrong = mutant("impl/slots.py Slots.has_slot", "return False", "return True")
    assert not bench.courses.get(SMALL[1]).reaches("engine", wrong.wire)
    wrong = mutant("impl/slots.py Slots.is_limited", "limit > 0", "limit > 1")
    assert bench.courses.get(SMALL[1]).reaches("engine", wrong.wire)


def test_all_that_is_shown_counts():
    """A difference in any field of an answer or of what is seen makes another number."""
    model = Model(SMALL[1].environment, load_engine("spec").build(SMALL[1].scheduler))
    model.do(model.arrival(0))
    outcome = model.do(model.enabled_actions()[-1])
    seen = model.scheduler.observe()
    number = fingerprint(outcome, seen)
    assert number == fingerprint(outcome, model.scheduler.observe())
    changed = [
        attrs.evolve(seen, free_block_ids=seen.free_block_ids[::-1]),
        attrs.evolve(seen, num_free_blocks=0),
        attrs.evolve(seen, waiting=["r1"]),
        attrs.evolve(seen, block_contents={1: (None, (0,))}),
        attrs.evolve(
            seen, requests={n: attrs.evolve(r, num_preemptions=1) for n, r in seen.requests.items()}
        ),
        attrs.evolve(
            seen, requests={n: attrs.evolve(r, block_ids=[3]) for n, r in seen.requests.items()}
        ),
    ]
    assert number not in {fingerprint(outcome, other) for other in changed}
    assert number != fingerprint(Outcome(), seen)


def test_courses_are_of_the_engine_as_it_is():
    """An engine that does not do as the specification is reported before any mutant."""
    wrong = mutant(
        "impl/scheduler.py FastScheduler._preempt", "victim.num_preemptions += 1", "pass"
    )
    with planted(wrong.patch), pytest.raises(HarnessError, match="tiny: our engine breaks"):
        make_course(SMALL[1])


# ---- who notices ---------------------------------------------------------------------------------

SPEC, ENGINE = "spec/scheduler.py ReferenceScheduler", "impl/scheduler.py FastScheduler"
QUEUE, SPEC_QUEUE = "impl/free_block_queue.py FreeBlockQueue", "spec/request_queue.py"
PLACEHOLDERS = "victim.num_output_placeholders = 0"
APPEND = "block_ids.append(block_id)"
NOTICED = [
    (f"{SPEC}._preempt", PLACEHOLDERS, PLACEHOLDERS.replace("0", "1"), "explore"),
    (f"{SPEC}._preempt", "self.waiting.prepend_request(victim)", "pass", "explore"),
    (f"{ENGINE}.schedule", "self._schedule_waiting()", "pass", "lockstep"),
    (f"{QUEUE}.popleft_n", APPEND, "block_ids.insert(0, block_id)", "lockstep"),
    (f"{ENGINE}.__init__", "super().__init__(config)", "pass", "lockstep"),
]
RULES = [
    "placeholders_count_pending_samples",
    "queues_keep_their_order",
    "work_is_conserved",
    "same_as_spec",
    "engine_raises",
]
NOTICED = [(mutant(*row[:3]), row[3], rule) for row, rule in zip(NOTICED, RULES, strict=True)]


@pytest.mark.parametrize(("wrong", "checker", "rule"), NOTICED, ids=RULES)
def test_a_mutant_is_killed_by_what_notices_first(bench, wrong, checker, rule):
    """The checks of the specification see its mutants, lockstep sees those of our engine."""
    fate = bench.judge(wrong)
    assert ("killed", checker, rule) == (fate.outcome, fate.checker, fate.rule)


def test_a_mutant_that_hangs_is_killed(bench, monkeypatch):
    """A rule of the specification that never ends its loop is noticed, and ended."""
    monkeypatch.setattr("checkers.mutations.systematic.patience.TICK_S", 0.3)
    wrong = mutant(f"{SPEC_QUEUE} PriorityRequestQueue._pass_next", "return False", "return True")
    assert "engine_hangs" == bench.judge(wrong).rule


def test_what_shows_the_same_everywhere_is_equal(bench):
    """A mutant that no state of no setting tells from the original says how many it was led to."""
    wrong = mutant(f"{ENGINE}._begin_step", "self.num_reserved_blocks = 0", "pass")
    assert bench.judge(wrong).outcome == "killed"
    wrong = mutant("impl/slots.py Slots.is_limited", "limit > 0", "limit > 1")
    fate = bench.judge(wrong)
    num_states = sum(setting.num_states for setting in SMALL)
    assert ("equal", len(SMALL), num_states) == (fate.outcome, fate.num_settings, fate.num_states)


def test_what_nothing_reaches_is_unreached(bench):
    """A mutant of a statement that no setting runs is neither killed nor equal."""
    wrong = mutant("impl/slots.py Slots.has_slot", "return False", "return True")
    assert "unreached" == bench.judge(wrong).outcome


def test_recordings_notice_a_mutant():
    """A recorded run of a real engine is not accepted by a specification that plans otherwise."""
    path = ROOT / "tests" / "recordings" / "thrash.jsonl.gz"
    wrong = mutant(f"{SPEC}._preempt", "victim.num_preemptions += 1", "pass")
    assert "same_as_spec" == validate_under(wrong.patch, path)
    wrong = mutant(f"{SPEC}._choose_victim", "self.running[-1]", "self.running[0]")
    assert validate_under(wrong.patch, path)


@pytest.mark.parametrize("side", FILES)
def test_small_settings_kill_most_of_a_sample(bench, side):
    """Of files that a few small settings work through they kill most, on either side."""
    top = "impl" if side == "engine" else side
    files = (f"{top}/block_pool.py", f"{top}/request.py")
    sample = choose_mutants(Choice(side=side, files=files, num_sampled=SAMPLE, seed=1))
    found = Counter(bench.judge(wrong).outcome for wrong in sample)
    assert found["killed"] > found["equal"]
    assert SAMPLE == found.total()


# ---- what hangs ----------------------------------------------------------------------------------


def test_what_does_not_move_is_ended(monkeypatch):
    """A count that stays the same ends the block, one that grows does not."""
    monkeypatch.setattr("checkers.mutations.systematic.patience.TICK_S", 0.05)
    with pytest.raises(HangError), expecting_progress(lambda: 7):
        use_cpu(5.0)
    with expecting_progress(time.process_time_ns):
        use_cpu(0.2)


def use_cpu(seconds):
    """Computes for a while."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


# ---- what is said of it --------------------------------------------------------------------------

WRONG = mutant("impl/slots.py Slots.has_slot", "return False", "return True")
KILLED = Fate(outcome="killed", checker="lockstep", rule="same_as_spec", setting="tiny")
COMPLAINTS = [
    (KILLED, "", ""),
    (Fate(outcome="equal", num_settings=1, num_states=7), "", ""),
    (Fate(outcome="survived"), "", "survived"),
    (Fate(outcome="unreached"), "", "unreached"),
    (Fate(outcome="survived"), "nobody asks", ""),
    (Fate(outcome="unreached"), "nobody asks", ""),
    (KILLED, "nobody asks", "is noted (nobody asks), however same_as_spec notices it in tiny"),
]


@pytest.mark.parametrize(("fate", "reason", "complaint"), COMPLAINTS)
def test_a_survivor_needs_a_reason_that_is_true(fate, reason, complaint, monkeypatch):
    """Who survives or is not reached must be noted, and who is noted must not be killed."""
    notes = {WRONG.name: reason} if reason else {}
    monkeypatch.setattr(noted, "NOTED", notes)
    monkeypatch.setattr(noted, "NOT_RUN", {})
    check = command.describe_file(command.Judged(WRONG.patch.file, 1, [(WRONG, fate)]))
    assert ("violated" if complaint else "holds") == check.verdict
    assert complaint in "".join(check.findings)
    assert bool(complaint) == bool(check.findings)


def test_a_note_of_nothing_is_a_finding(monkeypatch):
    """What is noted and is not there any more is an error, where all mutants were judged."""
    judged = [command.Judged("impl/slots.py", 0)]
    monkeypatch.setattr(command, "NOT_RUN", {})
    monkeypatch.setattr(command, "NOTED", {WRONG.name: "", "impl/slots.py gone: a -> b": ""})
    check = command.sum_up(judged, is_all=True)
    assert ("noted, however no such mutant is there: impl/slots.py gone: a -> b",) == check.findings
    assert () == command.sum_up(judged, is_all=False).findings


def test_all_notes_are_of_mutants_that_there_are():
    """Each note names a mutant, or a function that has mutants, and a reason."""
    judged = [command.Judged(file, 0) for files in FILES.values() for file in files]
    assert () == command.sum_up(judged, is_all=True).findings
    assert all({**noted.NOT_RUN, **noted.NOTED}.values())


def test_an_interrupted_file_is_undetermined():
    """What is left says that nothing is known, unless a survivor was found before."""
    judged = command.Judged("impl/slots.py", 2, [(WRONG, KILLED)])
    check = command.describe_file(judged, "the time budget")
    assert "undetermined" == check.verdict
    assert "1 not judged: the time budget" in check.lines[0]


# ---- the command ---------------------------------------------------------------------------------

FEW = ("mutate", "--systematic", "engine", "--config", "refusals", "--config", "tiny")


def test_the_report_is_of_each_file(progress):
    """A sample is judged in processes; each is told with its line, its outcome and who noticed."""
    choice = Choice(side="engine", files=("impl/free_block_queue.py",), num_sampled=6)
    *files, sums = mutate_all(choice, SMALL[:2], 2, 0.0, progress)
    assert ["mutate  impl/free_block_queue.py"] == [check.title for check in files]
    (facts,) = (check.facts for check in files)
    assert 6 == len(facts["mutants"]) == sum(sums.facts["outcomes"].values())
    lines = (ROOT / "impl" / "free_block_queue.py").read_text().splitlines()
    assert all(0 < row["line"] <= len(lines) for row in facts["mutants"])
    assert {"killed"} <= set(facts["outcomes"]) <= {"killed", "equal", "survived", "unreached"}


def test_a_survivor_is_exit_code_1():
    """What small settings do not reach, and nobody has noted, is a finding."""
    options = ("--file", "impl/slots.py", "--sample", "3", "--seed", "1", "--format", "json")
    done = CliRunner().invoke(main, [*FEW, *options])
    report = json.loads(done.stdout)
    assert (1, "violated") == (done.exit_code, report["verdict"])
    assert "unreached" in done.stdout


def test_a_file_without_mutants_is_a_usage_error():
    """Exit code 2, and one sentence that names the files that have some."""
    done = CliRunner().invoke(main, [*FEW, "--file", "spec/stop.py"])
    assert 2 == done.exit_code
    assert "file 'spec/stop.py' has no mutants; name one of impl/scheduler.py" in done.stderr


def test_the_end_of_the_time_is_exit_code_3():
    """Without time nothing is judged, and nothing is said to hold."""
    options = ("--file", "impl/free_block_queue.py", "--time-budget", "0.01")
    done = CliRunner().invoke(main, [*FEW, *options])
    assert 3 == done.exit_code
    assert "none judged" in done.stdout
    assert "not judged: the time budget" in done.stdout


@pytest.mark.parametrize(
    ("end", "told"),
    [(KeyboardInterrupt(), "Ctrl-C"), (LostWorkersError("no mutant was finished"), "no mutant")],
)
def test_what_is_done_is_kept(end, told, progress, monkeypatch):
    """What was judged before Ctrl-C, or before the processes were lost, is told, and the rest."""

    def judge_some(bench, mutants, num_workers, deadline):
        yield mutants[0], KILLED
        raise end

    monkeypatch.setattr(command, "judge_all", judge_some)
    choice = Choice(side="engine", files=("impl/slots.py", "impl/stop.py"), num_sampled=8)
    *files, sums = mutate_all(choice, SMALL[:1], 2, 0.0, progress)
    assert ["undetermined"] * 2 == [check.verdict for check in files]
    assert all(f"not judged: {told}" in check.lines[0] for check in files)
    assert {"killed": 1} == sums.facts["outcomes"]


def test_ctrl_c_ends_the_processes():
    """Ctrl-C, which a terminal sends to all processes, ends the command at once, undetermined."""
    code = "from checkers.cli import main; main()"
    call = [sys.executable, "-c", code, *FEW, "--file", "impl/scheduler.py"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(call, cwd=ROOT, start_new_session=True, **pipes) as process:
        process.stderr.readline()  # The first word of progress, after some seconds.
        os.killpg(process.pid, signal.SIGINT)
        rest, errors = process.communicate()
    assert "Traceback" not in errors
    assert 3 == process.returncode or "violated" in rest
    assert "not judged: Ctrl-C" in rest


# ---- the table in docs/ --------------------------------------------------------------------------


def test_the_table_tells_what_is_noted():
    """docs/mutants.md names each note with its reason."""
    text = (ROOT / "docs" / "mutants.md").read_text()
    for name, reason in {**noted.NOT_RUN, **noted.NOTED}.items():
        assert f"| `{name}` | {reason} |" in text
