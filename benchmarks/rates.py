"""How fast the checkers look: states explored, and engine steps walked, per CPU second.

usage: python benchmarks/rates.py [--json PATH]      (one run; compare figures of one run only)
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from pathlib import Path

from checkers.configs import Setting, load_setting
from checkers.engines import load_engine
from checkers.explore import Budget, Explorer, make_root
from checkers.search import Plan, search
from spec.snapshot import Snapshot, freeze, rewind, save, thaw

ROUNDS = 3


def main() -> None:
    """Prints a table, and writes it as JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    plain = load_setting("plain")
    deep = load_setting("deep-fcfs")
    figures = {
        "explore plain, no judging (states/s)": best(lambda: generate(plain)),
        "explore plain, every state judged (states/s)": best(
            lambda: explore(plain, judge_all=False)
        ),
        "explore plain, every transition judged (states/s)": best(
            lambda: explore(plain, judge_all=True)
        ),
        "search fast in lockstep, plain (engine steps/s)": best(lambda: walk("fast", plain)),
        "search fast in lockstep, deep-fcfs (engine steps/s)": best(lambda: walk("fast", deep)),
        "search spec, all judged, plain (engine steps/s)": best(lambda: walk("spec", plain)),
    }
    for name, rate in figures.items():
        print(f"{name:<55} {rate:>8,.0f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


def best(measure: object) -> float:
    """The best of a few rounds: what others do on the machine only makes it slower."""
    assert callable(measure)
    return max(float(measure()) for _ in range(ROUNDS))


def explore(setting: Setting, *, judge_all: bool) -> float:
    """Unique states per CPU second of a complete exploration."""
    found = Explorer(setting, judge_all=judge_all).run(Budget())
    assert found.is_complete
    return found.num_unique / found.cpu_s


def generate(setting: Setting) -> float:
    """The same without any check: what the states themselves cost."""
    root = make_root(setting)
    frontier: list[Snapshot] = [freeze(root)]
    seen = set(frontier)
    gc.disable()
    started = time.process_time()
    while frontier:
        level = []
        for state in frontier:
            model = thaw(root, state)
            saved = save(model)
            for number, action in enumerate(model.enabled_actions()):
                if number:
                    rewind(model, saved)
                model.do(action)
                value = freeze(model)
                if value not in seen:
                    seen.add(value)
                    level.append(value)
        frontier = level
    cpu_s = time.process_time() - started
    gc.enable()
    return len(seen) / cpu_s


def walk(engine: str, setting: Setting) -> float:
    """Engine steps per CPU second of random walks."""
    found = search(load_engine(engine), [setting], Plan(num_walks=60))
    assert found.verdict == "holds"
    return found.num_engine_steps / found.cpu_s


if __name__ == "__main__":
    main()
