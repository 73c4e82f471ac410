from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import pytest

from tests.house.source import ROOT
from tests.proofs import contracts
from tests.proofs.nights import at_night

pytestmark = [
    pytest.mark.slow,
    at_night,
    pytest.mark.skipif(
        importlib.util.find_spec("crosshair") is None, reason="the extra `proofs` brings CrossHair"
    ),
]
# It patches builtins and settings of the solver, so it has a process of its own.
CHECK = (
    sys.executable,
    "-m",
    "crosshair",
    "check",
    "--analysis_kind=asserts",
    "--report_all",
    "--per_condition_timeout=600",
    "--per_path_timeout=60",
)
TIMEOUT_S = 900


def ask_crosshair(contract):
    """What CrossHair says of a contract."""
    name = f"{contract.__module__}.{contract.__name__}"
    command = [*CHECK, name]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "contract",
    [contracts.one_runs_and_one_waits, contracts.two_run],
    ids=lambda contract: contract.__name__,
)
def test_crosshair_confirms_a_step(contract):
    """It has run all paths of the contract, and nothing breaks it."""
    said = ask_crosshair(contract)
    assert ["info: Confirmed over all paths."] == re.findall(r"(?:info|error): .*", said)


@pytest.mark.parametrize(
    "contract",
    [contracts.one_runs_and_takes_no_blocks, contracts.two_run_and_a_victim_keeps_its_tokens],
    ids=lambda contract: contract.__name__,
)
def test_crosshair_refutes_a_wrong_spec(contract):
    """It finds numbers for which a mutant of the spec breaks its contract, and they do."""
    said = ask_crosshair(contract)
    numbers = re.search(rf"error: AssertionError.*{contract.__name__}\(([-\d, ]+)\)", said)
    assert numbers is not None, said
    with pytest.raises(AssertionError) as broken:
        contract(*map(int, numbers[1].split(",")))
    assert "_check_step" == broken.traceback[-1].name
