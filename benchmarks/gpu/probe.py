"""Asks a CUDA machine all there is to ask, in at most 8 minutes: `python benchmarks/gpu/probe.py`.

Correctness comes first: do rows keep their bits on this device, in kernels and in the runner? Then
the questions that only a device answers, then what a step costs beside ordinary torch. Everything
goes to one JSON file, which is complete after each section, and names what was not run and why.

`--dry-run` takes the same way on a CPU with tiny shapes, where kernels are interpreted and nothing
is timed. Exit codes: 0 all rows keep their bits, 1 some do not, 2 there is no CUDA device, 3 the
time ended before that was known.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from attrs import define, field

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.gpu import correctness, questions, speed  # noqa: E402
from benchmarks.gpu.sizes import Setting, dry_setting, full_setting  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "gpu_probe.json"
BUDGET_S = 450.0
"""What starts later is left out; the rest of 8 minutes is for what is under way."""

Row = dict[str, Any]
Section = Callable[[Setting], Iterator[Row]]

CORRECTNESS: dict[str, Section] = {
    "rows keep their bits in kernels": correctness.compare_kernels,
    "rows keep their bits in the runner": correctness.compare_runner,
}
OTHERS: dict[str, Section] = {
    "does a library keep the bits of a row": questions.ask_library,
    "which tiles of a product keep the bits": questions.ask_product_tiles,
    "which tiles of attention keep the bits": questions.ask_attention_tiles,
    "what a step costs": speed.measure_steps,
    "what other tiles would cost": questions.measure_product_tiles,
}


@define
class Findings:
    """What was seen, and what was not looked at."""

    about: Row
    sections: dict[str, list[Row]] = field(factory=dict)
    not_run: dict[str, str] = field(factory=dict)
    """By section: why."""
    seconds: dict[str, float] = field(factory=dict)

    def write(self, path: Path) -> None:
        """Writes all that is known so far."""
        path.parent.mkdir(parents=True, exist_ok=True)
        known = {
            **self.about,
            "verdict": self.judge(),
            "not_run": self.not_run,
            "seconds": self.seconds,
            "sections": self.sections,
        }
        path.write_text(json.dumps(known, indent=1) + "\n")

    def judge(self) -> str:
        """Says whether rows keep their bits: holds, violated or undetermined."""
        rows = [row for name in CORRECTNESS for row in self.sections.get(name, ())]
        if any(row["num_differing"] or not row["is_accurate"] for row in rows):
            return "violated"
        is_complete = all(
            self.sections.get(name) and name not in self.not_run for name in CORRECTNESS
        )
        return "holds" if is_complete else "undetermined"


def run(setting: Setting, findings: Findings, path: Path, budget_s: float) -> None:
    """Runs all sections in order for as long as there is time."""
    begin = time.monotonic()
    for name, section in (CORRECTNESS | OTHERS).items():
        start = time.monotonic()
        if start - begin >= budget_s:
            findings.not_run[name] = f"no time was left of {budget_s:.0f} s"
            continue
        findings.sections[name] = []
        print(name, flush=True)
        try:
            for row in section(setting):
                findings.sections[name].append(row)
                print("  ", " ".join(f"{key}={value}" for key, value in row.items()), flush=True)
                if time.monotonic() - begin > budget_s:
                    findings.not_run[name] = f"cut short after {budget_s:.0f} s"
                    break
        except Exception as error:  # noqa: BLE001  (what the others would find must not be lost)
            findings.not_run[name] = f"failed: {type(error).__name__}: {str(error)[:500]}"
        findings.seconds[name] = round(time.monotonic() - start, 1)
        findings.write(path)
    findings.write(path)


def describe(setting: Setting) -> Row:
    """Says what was measured on, and with what."""
    is_cuda = setting.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name() if is_cuda else "CPU, Triton's interpreter",
        "is_dry_run": setting.is_dry,
        "timings": "device events" if is_cuda else "not measured",
        "torch": torch.__version__,
        "triton": importlib.metadata.version("triton"),
    }


def main() -> int:
    """Runs the probe; returns the exit code."""
    parser = argparse.ArgumentParser(description="Asks a CUDA machine all there is to ask.")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on the CPU, no timings")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help="seconds, in all")
    arguments = parser.parse_args()
    if not arguments.dry_run and not torch.cuda.is_available():
        print("there is no CUDA device; --dry-run takes the same way on a CPU", file=sys.stderr)
        return 2
    setting = dry_setting() if arguments.dry_run else full_setting()
    findings = Findings(describe(setting))
    with torch.inference_mode():
        run(setting, findings, arguments.out, arguments.budget_s)
    print(f"rows keep their bits: {findings.judge()}; {arguments.out}")
    for name, reason in findings.not_run.items():
        print(f"not run: {name}: {reason}")
    if setting.is_dry:
        print("a dry run: nothing was seen on CUDA, and nothing was timed")
    return {"holds": 0, "violated": 1, "undetermined": 3}[findings.judge()]


if __name__ == "__main__":
    sys.exit(main())
