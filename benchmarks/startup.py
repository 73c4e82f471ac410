"""How long `import spec` and `schedcheck --help` take, start of the interpreter included.

Run `python benchmarks/startup.py`. The target is 0.5 s for each; what keeps it is that neither
torch nor z3 is loaded, which tests/house checks. A clock is no test, so this is a script.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

TARGET_S = 0.5
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import spec.scheduler": ["-c", "import spec.scheduler"],
    "schedcheck --help": ["-c", "from checkers.cli import main; main()", "--help"],
}


def main() -> None:
    """Prints a table of times, and writes it as JSON if asked to."""
    parser = argparse.ArgumentParser(description="Measures start-up times.")
    parser.add_argument("--runs", type=int, default=10, help="how often each command runs")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    figures = {name: measure(command, arguments.runs) for name, command in COMMANDS.items()}
    print(f"{'command':24} {'min s':>7} {'median s':>9}   target {TARGET_S} s")
    for name, times in figures.items():
        median = statistics.median(times)
        verdict = "met" if median < TARGET_S else "missed"
        print(f"{name:24} {min(times):7.3f} {median:9.3f}   {verdict}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2))


def measure(command: list[str], num_runs: int) -> list[float]:
    """Returns the wall time of each run in seconds, after one run that warms the disk cache."""
    return [_run_s(command) for _ in range(num_runs + 1)][1:]


def _run_s(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
