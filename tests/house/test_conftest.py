from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import settings

from tests.house.source import ROOT

FILES = {
    "test_body.py": "import pytest\ndef test_a():\n    pytest.skip('no device')",
    "test_mark.py": "import pytest\n@pytest.mark.skip(reason='no device')\ndef test_a(): pass",
    "test_file.py": "import pytest\npytest.skip('no device', allow_module_level=True)",
    "test_xfail.py": "import pytest\n@pytest.mark.xfail\ndef test_a(): assert False",
}


def run_pytest(folder, *options):
    """Runs pytest with our conftest on `FILES`; returns its exit status and what it printed."""
    for name, source in FILES.items():
        (folder / name).write_text(source)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-rsfE", "--rootdir", folder]
    done = subprocess.run(
        [*command, "--continue-on-collection-errors", *options, folder],
        cwd=ROOT,
        # In CI pytest prints its summary at length.
        env={name: value for name, value in os.environ.items() if name != "CI"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_something_absent_is_a_skip_with_its_reason(tmp_path):
    """A skip in a test, a mark or a file is no failure, and the summary shows its reason."""
    returncode, stdout = run_pytest(tmp_path)
    assert returncode == pytest.ExitCode.OK
    assert "3 skipped, 1 xfailed" in stdout
    assert stdout.count(": no device") == len(FILES) - 1


def test_no_skip_makes_each_skip_a_failure(tmp_path):
    """With --no-skip each fails with its reason; an expected failure did run, and is none."""
    returncode, stdout = run_pytest(tmp_path, "--no-skip")
    assert returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 failed, 1 xfailed, 2 errors" in stdout
    assert stdout.count("would skip: Skipped: no device") == len(FILES) - 1


def test_the_ci_profile_finds_the_same_things_every_time():
    """The profile of a push draws no new examples, and the deep one does."""
    assert settings.get_profile("ci").derandomize
    assert not settings.get_profile("deep").derandomize


@pytest.mark.parametrize("profile", ["ci", "deep"])
def test_the_environment_chooses_the_profile(profile):
    """HYPOTHESIS_PROFILE names the profile that tests run with."""
    code = "import tests.conftest, hypothesis as h; print(h.settings.default.max_examples)"
    environment = {**os.environ, "HYPOTHESIS_PROFILE": profile}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == settings.get_profile(profile).max_examples
