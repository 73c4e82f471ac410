from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from checkers.counterexample import read
from checkers.patch import comparison, sources
from tests.checkers.patched import (
    ADD,
    FORGETS,
    IGNORES_ABORTS,
    SCHEDULE,
    TOY,
    WHEN_TWO_RUN,
    changed,
    commit,
    diff_of,
    git,
    kinds_of,
    patch,
    patch_with,
    write_toy,
)

ROOT = Path(__file__).parents[2]
LOST = "requests_are_conserved"


# ---- what a change breaks, mends and alters ------------------------------------------------------


def test_what_head_breaks_is_introduced(tmp_path):
    """A rule that breaks with the change alone is found, shrunk, written, and put to a line."""
    document = patch_with(tmp_path, FORGETS)
    assert (1, [("introduced", LOST)]) == (document["exit_code"], kinds_of(document))
    facts = document["checks"][1]["facts"]
    assert 1 == facts["num_actions"]
    assert [f"toy/engine.py:{line_of(FORGETS, 'pass')}  pass  (in the last step)"] == facts[
        "changed"
    ]
    assert LOST == read(Path(facts["path"])).breach.name


def line_of(change, text):
    """The number of the line that a change has made of another."""
    lines = changed(change).splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip() == text)


def test_what_head_mends_is_fixed(tmp_path):
    """A rule that breaks without the change alone is mended, and no fault of the change."""
    document = patch_with(tmp_path, FORGETS[::-1], before=changed(FORGETS))
    assert (0, [("fixed", LOST)]) == (document["exit_code"], kinds_of(document))


def test_what_was_broken_is_no_fault_of_a_change(tmp_path):
    """A rule that breaks on both sides was broken before; what lies behind is not known."""
    change = (SCHEDULE, "        output = super().schedule()\n        return output\n")
    document = patch_with(tmp_path, change, before=changed(FORGETS))
    found = kinds_of(document)
    assert (3, [("there before", LOST), ("not reached", None)]) == (document["exit_code"], found)
    assert "undetermined" == document["checks"][0]["verdict"]
    assert "mend that first" in document["checks"][0]["findings"][0]


def test_a_new_fault_beside_an_old_one_is_told_apart(tmp_path):
    """If both sides break rules, what only head breaks is still introduced."""
    change = (ADD, f"        if not self.waiting:\n    {ADD}")
    document = patch_with(tmp_path, change, before=changed(IGNORES_ABORTS))
    assert 1 == document["exit_code"]
    assert {("introduced", LOST), ("there before", LOST)} <= set(kinds_of(document))


def test_a_change_of_behaviour_that_breaks_nothing_is_shown(tmp_path):
    """Without lockstep, the first decision that differs is shown at the end of a short run."""
    change = (
        "super().__init__(config)",
        "super().__init__(attrs.evolve(config, same_step_prefix_hits=False))",
    )
    options = ("--no-lockstep", "--config", "prefix", "--length", "150")
    document = patch_with(tmp_path, change, options=options)
    assert (0, [("behaviour changed", None)]) == (document["exit_code"], kinds_of(document))
    facts = document["checks"][1]["facts"]
    assert 3 == facts["num_actions"]
    assert facts["base"] != facts["head"]
    assert any("num_computed_tokens: base 2, head 0" in change for change in facts["changes"])


def test_lockstep_tells_of_the_same_change(tmp_path):
    """With lockstep, the same change departs from the specification."""
    change = (
        "super().__init__(config)",
        "super().__init__(attrs.evolve(config, same_step_prefix_hits=False))",
    )
    document = patch_with(tmp_path, change, options=("--config", "prefix", "--length", "150"))
    assert (1, [("introduced", "same_as_spec")]) == (document["exit_code"], kinds_of(document))


def test_a_change_that_breaks_nothing_holds(tmp_path):
    """If all changed lines are reached and nothing differs, the change holds, with counts."""
    change = (SCHEDULE, "        output = super().schedule()\n        return output\n")
    document = patch_with(tmp_path, change)
    assert (0, []) == (document["exit_code"], kinds_of(document))
    facts = document["checks"][0]["facts"]
    assert (2, 2, 0) == (
        facts["num_changed_lines"],
        facts["num_reached_lines"],
        facts["num_differing"],
    )
    assert facts["num_walks"]["head"] > 0


def test_a_line_that_nothing_reached_is_never_ok(tmp_path):
    """A changed line that no run reached is listed, and the verdict is undetermined."""
    change = (SCHEDULE, f"        if len(self.running) > 99:\n            return None\n{SCHEDULE}")
    document = patch_with(tmp_path, change)
    kinds = [("not reached", None), ("reached in vain", None)]
    assert (3, kinds) == (document["exit_code"], kinds_of(document))
    number = line_of(change, "return None")
    assert [f"toy/engine.py:{number}  return None"] == document["checks"][1]["facts"]["lines"]


def test_a_deletion_counts_only_if_base_reached_what_is_gone(tmp_path):
    """That the next line runs says nothing of code that never ran: the verdict is undetermined."""
    dead = f"        if len(self.running) > 99:\n            self.waiting.items.clear()\n{SCHEDULE}"
    document = patch_with(tmp_path, (dead, SCHEDULE), before=changed((SCHEDULE, dead)))
    kinds = [("not reached", None), ("reached in vain", None)]
    assert (3, kinds) == (document["exit_code"], kinds_of(document))
    (row,) = document["checks"][1]["facts"]["lines"]
    assert "self.waiting.items.clear()  [gone, and base did not reach it]" in row


def test_a_deletion_that_base_reached_holds(tmp_path):
    """Code that ran, and is not missed, may go."""
    idle = f"        self.running = list(self.running)\n{SCHEDULE}"
    document = patch_with(tmp_path, (idle, SCHEDULE), before=changed((SCHEDULE, idle)))
    assert (0, []) == (document["exit_code"], kinds_of(document))
    facts = document["checks"][0]["facts"]
    assert (1, 1) == (facts["num_changed_lines"], facts["num_reached_lines"])


def test_a_change_of_comments_alone_takes_no_walks(tmp_path):
    """Where the code is the same without docstrings and comments, that is said, and it holds."""
    document = patch_with(tmp_path, ("A scheduler to be changed.", "A scheduler."))
    (summary,) = document["checks"]
    assert (0, "holds") == (document["exit_code"], summary["verdict"])
    assert (["toy/engine.py"], 0) == tuple(
        summary["facts"][name] for name in ("changed_files", "num_changed_lines")
    )
    assert "no behaviour changed" in patch(tmp_path, tmp_path / "change.diff", form="text").stdout


def test_the_same_seed_finds_the_same(tmp_path):
    """What is found is decided by the change and the seed, not by the clock or the folder."""
    names = set()
    for folder in (tmp_path / "one", tmp_path / "other"):
        raises = (ADD, f"        1 // len(self.waiting)\n{ADD}")
        document = patch_with(folder, raises)
        names.add(Path(document["checks"][1]["facts"]["path"]).name)
    assert 1 == len(names)


# ---- engines that do worse -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "how"),
    [
        ("__import__('os').kill(__import__('os').getpid(), 9)", "was ended by SIGKILL"),
        ("__import__('ctypes').string_at(0)", "was ended by SIGSEGV"),
    ],
)
def test_an_engine_that_ends_its_process_is_a_finding(tmp_path, fault, how):
    """The finding names the setting and the walk; nothing else is lost."""
    change = (SCHEDULE, f"{WHEN_TWO_RUN}{fault}\n{SCHEDULE}")
    document = patch_with(tmp_path, change, options=("--no-lockstep",))
    assert (1, ("introduced", "engine_dies")) == (document["exit_code"], kinds_of(document)[0])
    assert [f"head {how}, in setting tiny, walk 0"] == document["checks"][1]["findings"]


def test_a_process_that_is_stuck_in_c_code_is_ended(tmp_path):
    """A call that nothing can interrupt is ended, and the report says where it was."""
    stuck = "sum(range(10**12))"
    change = (SCHEDULE, f"{WHEN_TWO_RUN}{stuck}\n{SCHEDULE}")
    options = ("--no-lockstep", "--engine-timeout", "0.3")
    document = patch_with(tmp_path, change, options=options)
    (found,) = document["checks"][1]["findings"]
    assert "head did not return from a call within 0.3 s, in setting tiny, walk 0" == found
    assert (
        f'File "toy/engine.py", line {line_of(change, stuck)} in schedule'
        in (document["checks"][1]["explanation"])
    )


@pytest.mark.parametrize(
    ("fault", "rule"),
    [("while True: pass", "engine_hangs"), ("bytearray(1 << 40)", "engine_raises")],
)
def test_a_loop_and_a_lack_of_memory_are_findings(tmp_path, fault, rule):
    """An engine that never returns, or eats memory, breaks a rule like any other fault."""
    change = (SCHEDULE, f"{WHEN_TWO_RUN}{fault}\n{SCHEDULE}")
    options = ("--memory-limit", "1000", "--engine-timeout", "0.3")
    document = patch_with(tmp_path, change, options=options)
    assert (1, ("introduced", rule)) == (document["exit_code"], kinds_of(document)[0])


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        ("import attrs\nimport nothing_such", "No module named 'nothing_such'"),
        ("import attrs\n)", "SyntaxError: unmatched ')'"),
    ],
)
def test_an_import_that_breaks_is_a_finding(tmp_path, new, reason):
    """A head that cannot be imported is a finding, with the reason."""
    document = patch_with(tmp_path, ("import attrs", new))
    expected = [("introduced", "engine_is_imported")]
    assert (1, expected) == (document["exit_code"], kinds_of(document))
    assert reason in document["checks"][1]["findings"][0]


@pytest.mark.parametrize("chance", [10, 60])
def test_an_engine_that_is_not_deterministic_is_a_finding(tmp_path, chance):
    """A run that fails, and does not when it is repeated, is a fault of head; nothing crashes."""
    moody = f"__import__('os').urandom(1)[0] < {chance} and 1 / 0"
    document = patch_with(tmp_path, (SCHEDULE, f"        {moody}\n{SCHEDULE}"))
    assert 1 == document["exit_code"]
    assert {rule for kind, rule in kinds_of(document) if kind == "introduced"} <= {
        "engine_is_deterministic",
        "engine_raises",
    }


def test_an_import_that_hangs_is_a_finding(tmp_path):
    """A head that does not get through its import is ended."""
    change = ("import attrs", "import attrs\n\nwhile True:\n    pass")
    document = patch_with(tmp_path, change, options=("--engine-timeout", "0.1"))
    assert (1, ("introduced", "engine_dies")) == (document["exit_code"], kinds_of(document)[0])
    assert "while it was imported" in document["checks"][1]["findings"][0]


def test_a_base_that_cannot_be_imported_is_refused(tmp_path):
    """Nothing can be compared with a base that does not work: exit code 2, one sentence."""
    broken = changed(("import attrs", "import nothing_such"))
    write_toy(tmp_path, broken)
    (tmp_path / "change.diff").write_text(diff_of(broken, TOY))
    result = patch(tmp_path, tmp_path / "change.diff")
    assert (2, "") == (result.exit_code, result.stdout)
    assert "base cannot be imported: ModuleNotFoundError" in result.stderr


def test_what_an_engine_prints_is_no_part_of_the_conversation(tmp_path):
    """An engine may print, and close its standard output, as it likes."""
    change = (SCHEDULE, f"        print('{{}}', flush=True)\n{SCHEDULE}")
    assert 0 == patch_with(tmp_path, change)["exit_code"]


# ---- input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (diff_of(TOY, changed(FORGETS)).replace("super()", "sooper()"), "does not apply"),
        (diff_of(changed(FORGETS), TOY), "is applied already"),
        ("\n", "is empty"),
        ("hello\n", "is no diff"),
    ],
)
def test_a_diff_that_cannot_be_used_is_refused(tmp_path, text, reason):
    """One clear sentence, and exit code 2."""
    write_toy(tmp_path)
    (tmp_path / "change.diff").write_text(text)
    result = patch(tmp_path, tmp_path / "change.diff")
    assert (2, "", 1) == (result.exit_code, result.stdout, len(result.stderr.splitlines()))
    assert reason in result.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "name a diff"),
        (("change.diff", "--base", "HEAD"), "name a diff"),
        (("nothing.diff",), "cannot be read"),
        (("--base", "nowhere"), "has no revision 'nowhere'"),
        (("--base", "HEAD", "--head", "--help"), "has no revision '--help'"),
        (("--base", "HEAD", "--engine", "teeny:Toy"), "holds neither of teeny"),
        (("change.diff", "--engine", "teeny:Toy"), "holds no package 'teeny'"),
        (("change.diff", "--engine", "spec"), "is what changes are held against"),
        (("change.diff", "--engine", "nobody"), "is unknown"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused(tmp_path, arguments, reason):
    """One clear sentence, and exit code 2."""
    git(tmp_path, "init", "-q")
    commit(tmp_path, TOY, "right")
    (tmp_path / "change.diff").write_text(diff_of(TOY, changed(FORGETS)))
    named = [tmp_path / given if given.endswith(".diff") else given for given in arguments]
    engine = arguments[arguments.index("--engine") + 1] if "--engine" in arguments else None
    result = patch(tmp_path, *named, **({"engine": engine} if engine else {}))
    assert (2, "") == (result.exit_code, result.stdout), result.output
    assert reason in result.stderr


def test_what_lies_outside_of_the_engine_is_not_checked(tmp_path):
    """A change that leaves the engine alone, and what it imports, says what it does not check."""
    write_toy(tmp_path)
    (tmp_path / "notes.txt").write_text("one\n")
    (tmp_path / "change.diff").write_text(diff_of("one\n", "two\n", "notes.txt"))
    result = patch(tmp_path, tmp_path / "change.diff", form="text")
    assert 0 == result.exit_code
    assert "nothing of the engine (toy), nor anything that it imports" in result.stdout
    assert "not part of the engine (toy): notes.txt" in result.stdout


HELPER = "def help():\n    return 1\n"
USES_HELPER = ("import attrs\n", "import attrs\n\nfrom shared import helper\n")


@pytest.mark.parametrize(
    "change",
    [(), (SCHEDULE, f"        # Why.\n{SCHEDULE}"), (SCHEDULE, f"        one = 1\n{SCHEDULE}")],
    ids=["nothing", "a comment", "code"],
)
def test_a_change_of_what_the_engine_imports_is_never_ok(tmp_path, change):
    """Whatever of the engine changes beside it, it is not known what comes of that."""
    before = changed(USES_HELPER)
    write_toy(tmp_path, before)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "helper.py").write_text(HELPER)
    after = changed(change, text=before) if change else before
    (tmp_path / "change.diff").write_text(
        diff_of(before, after) + diff_of(HELPER, HELPER.replace("1", "2"), "shared/helper.py")
    )
    document = json.loads(patch(tmp_path, tmp_path / "change.diff", "--no-lockstep").stdout)
    assert 3 == document["exit_code"]
    sentence = document["checks"][0]["findings"][-1]
    assert sentence.startswith("the engine imports shared/helper.py, which changes, too")


def test_only_the_engines_part_of_a_diff_is_applied(tmp_path):
    """Files outside of the engine are listed beside what was checked, even if they do not exist."""
    write_toy(tmp_path)
    more = diff_of("one\n", "two\n", "spec/scheduler.py")
    (tmp_path / "change.diff").write_text(diff_of(TOY, changed(FORGETS)) + more)
    document = json.loads(patch(tmp_path, tmp_path / "change.diff").stdout)
    assert (1, [("introduced", LOST)]) == (document["exit_code"], kinds_of(document))
    assert ["spec/scheduler.py"] == document["checks"][0]["facts"]["outside"]


def test_revisions_are_compared(tmp_path):
    """Two revisions, or one and the working tree; the checkout is left as it was."""
    git(tmp_path, "init", "-q")
    commit(tmp_path / ".", TOY, "right")
    commit(tmp_path / ".", changed(FORGETS), "wrong")
    before = sorted(tmp_path.rglob("*"))
    there = patch(tmp_path, "--base", "HEAD~1", "--head", "HEAD", "--out", tmp_path / ".." / "out")
    back = patch(tmp_path, "--base", "HEAD", "--head", "HEAD~1")
    assert [("introduced", LOST)] == kinds_of(json.loads(there.stdout))
    assert [("fixed", LOST)] == kinds_of(json.loads(back.stdout))
    kept = [path for path in sorted(tmp_path.rglob("*")) if "out" not in path.parts]
    assert before == kept
    write_toy(tmp_path, TOY)
    mended = patch(tmp_path, "--base", "HEAD")
    assert [("fixed", LOST)] == kinds_of(json.loads(mended.stdout))


def test_temporary_folders_may_lie_in_a_checkout(tmp_path):
    """The diff is applied to the copy, also where git would look at a repository around it."""
    git(tmp_path, "init", "-q")
    commit(tmp_path, TOY, "right")
    (tmp_path / "change.diff").write_text(diff_of(TOY, changed(FORGETS)))
    folder = make_folder(tmp_path / "tmp")
    taken = sources.take_diff(str(tmp_path / "change.diff"), "toy.engine:Toy", tmp_path, folder)
    texts = [(tree / "toy/engine.py").read_text() for tree in (taken.base, taken.head)]
    assert [TOY, changed(FORGETS)] == texts


def test_another_copy_of_the_engine_is_never_taken(tmp_path):
    """A head without the package is a finding, also if Python finds the package elsewhere."""
    git(tmp_path, "init", "-q")
    commit(tmp_path, TOY, "right")
    git(tmp_path, "rm", "-rq", "toy")
    git(tmp_path, "commit", "-qm", "gone")
    write_toy(tmp_path)
    document = json.loads(patch(tmp_path, "--base", "HEAD~1", "--head", "HEAD").stdout)
    assert [("introduced", "engine_is_imported")] == kinds_of(document)
    assert "which is not the tree to check" in document["checks"][1]["findings"][0]


def test_a_package_may_lie_deeper(tmp_path):
    """A package in `src`, and a diff without prefixes, are found."""
    write_toy(tmp_path / "src")
    text = diff_of(TOY, changed(FORGETS), "src/toy/engine.py", prefixes=("", ""))
    (tmp_path / "change.diff").write_text(text)
    document = json.loads(patch(tmp_path, tmp_path / "change.diff").stdout)
    assert [("introduced", LOST)] == kinds_of(document)
    assert ["src/toy/engine.py"] == document["checks"][0]["facts"]["changed_files"]


def test_a_diff_may_come_from_a_pipe(tmp_path):
    """`-` is standard input."""
    write_toy(tmp_path)
    text = diff_of(TOY, changed(IGNORES_ABORTS))
    options = ("--engine", "toy.engine:Toy", "--repo", tmp_path, "--out", tmp_path, "--walks", "1")
    with start("-", "--config", "tiny", *options, stdin=subprocess.PIPE) as process:
        stdout, _ = process.communicate(text, timeout=60)
    assert 1 == process.returncode
    assert "introduced  requests_are_conserved" in stdout


def test_our_own_engine_is_checked_where_it_lives(tmp_path, monkeypatch):
    """Without a checkout here, a diff is held against the sources of this installation."""
    monkeypatch.chdir(tmp_path)
    taken = sources.take_diff(str(write_diff_of_ours(tmp_path)), "fast", None, tmp_path)
    assert ("impl", ROOT) == (taken.package, taken.root)
    before, after = ((tree / "impl/stop.py").read_text() for tree in (taken.base, taken.head))
    assert before + "WRONG = True\n" == after


def write_diff_of_ours(folder):
    """Writes a diff that adds a line to a file of our engine."""
    text = (ROOT / "impl" / "stop.py").read_text()
    path = folder / "ours.diff"
    path.write_text(diff_of(text, text + "WRONG = True\n", "impl/stop.py"))
    return path


# ---- the report ----------------------------------------------------------------------------------


def test_the_report_reads_well_as_text_and_markdown(tmp_path):
    """Both say what was introduced, by which line, in which run, and where it is written."""
    write_toy(tmp_path)
    (tmp_path / "change.diff").write_text(diff_of(TOY, changed(FORGETS)))
    text = patch(tmp_path, tmp_path / "change.diff", form="text").stdout
    assert f"introduced  {LOST}\n" in text
    assert "  rule after vllm/v1/core" in text
    assert "which fails again on head only" in text
    assert f"error[{LOST}]: Every live request" in text
    markdown = patch(tmp_path, tmp_path / "change.diff", form="markdown").stdout
    assert markdown.startswith("## schedcheck patch: violated\n")
    assert f"### ❌ introduced  {LOST}\n" in markdown
    assert "\nrule after vllm/v1/core" in markdown
    assert 0 == markdown.count("```") % 2
    table = text[text.index("  #  action") : text.index("  Then")]
    assert "\n".join(line[2:] for line in table.splitlines()) in markdown


def start(*arguments, **options):
    """Starts the command as users do."""
    code = "from checkers.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, "patch", *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
        **options,
    )


def test_ctrl_c_ends_both_and_reports(tmp_path):
    """Ctrl-C ends the processes, removes the folders, and what was found is reported."""
    sign = tmp_path / "walks"
    note = f"        __import__('pathlib').Path({str(sign)!r}).touch()\n"
    change = (SCHEDULE, note + SCHEDULE)
    write_toy(tmp_path)
    (tmp_path / "change.diff").write_text(diff_of(TOY, changed(change)))
    options = ("--engine", "toy.engine:Toy", "--repo", tmp_path, "--out", tmp_path)
    folder = {**os.environ, "TMPDIR": str(make_folder(tmp_path / "tmp"))}
    with start(tmp_path / "change.diff", *options, "--config", "tiny", env=folder) as process:
        while not sign.exists():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert 3 == process.returncode, stderr
    assert "Ctrl-C" in stdout
    assert "Traceback" not in stderr
    assert [] == list((tmp_path / "tmp").iterdir())


def make_folder(path):
    """Makes a folder."""
    path.mkdir()
    return path


def test_ctrl_c_keeps_what_was_found(tmp_path, monkeypatch):
    """What had failed when Ctrl-C was pressed is repeated on the other side, and reported."""
    note = comparison.Comparison._note_failing

    def press(self, side, run):
        note(self, side, run)
        raise KeyboardInterrupt

    monkeypatch.setattr(comparison.Comparison, "_note_failing", press)
    document = patch_with(tmp_path, FORGETS)
    assert (1, ("introduced", LOST)) == (document["exit_code"], kinds_of(document)[0])
    assert "Ctrl-C" == document["checks"][0]["facts"]["ended_by"]
