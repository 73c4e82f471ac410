"""Measures what a decode step costs: `python benchmarks/decode_step.py`.

Every request runs and samples one token per step. A time is of one `schedule` and one
`update_from_output`, in CPU time: the median over all steps of several rounds, in which both
engines take turns. The reference scheduler copies a request's tokens whenever it appends one, so
the ratio grows with the length of the prompts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from attrs import asdict, frozen

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from impl.scheduler import FastScheduler  # noqa: E402
from spec.interface import (  # noqa: E402
    ModelRunnerOutput,
    NewRequest,
    Scheduler,
    SchedulerConfig,
    SchedulerOutput,
)
from spec.scheduler import ReferenceScheduler  # noqa: E402

Make = Callable[[SchedulerConfig], Scheduler]

BLOCK_SIZE = 16
NUM_WARM_UP_STEPS = 4
NUM_STEPS = BLOCK_SIZE
"""Per round; every request fills one block in it."""
NUM_ROUNDS = 5

MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "prefix caching": {"enable_prefix_caching": True},
    "async, one step ahead": {"async_scheduling": True},
    "both": {"enable_prefix_caching": True, "async_scheduling": True},
}


@frozen
class Row:
    """One line of the table."""

    mode: str
    num_running: int
    reference_us: float
    """Per step."""
    fast_us: float
    """Per step."""

    @property
    def fast_ns_per_request(self) -> float:
        """What one request adds to a step of our engine."""
        return 1000 * self.fast_us / self.num_running

    @property
    def ratio(self) -> float:
        """How many times faster our engine is."""
        return self.reference_us / self.fast_us


class Decoding:
    """An engine all of whose requests decode; in async modes, always one step ahead."""

    def __init__(self, make: Make, config: SchedulerConfig, num_prompt_tokens: int) -> None:
        self.scheduler = make(config)
        self.in_flight: list[SchedulerOutput] = []
        requests = [make_request(n, num_prompt_tokens) for n in range(config.max_num_seqs)]
        for request in requests:
            self.scheduler.add_request(request)
        self.sampled = ModelRunnerOutput({request.request_id: [1] for request in requests})
        if config.async_scheduling:
            self.in_flight.append(self.scheduler.schedule())
        for _ in range(NUM_WARM_UP_STEPS):
            self.step()

    def step(self) -> None:
        """Does one engine step."""
        self.in_flight.append(self.scheduler.schedule())
        self.scheduler.update_from_output(self.in_flight.pop(0), self.sampled)

    def measure_steps(self) -> list[float]:
        """Returns how long each step of a round takes, in seconds."""
        times = [time.process_time()]
        for _ in range(NUM_STEPS):
            self.step()
            times.append(time.process_time())
        return [end - start for start, end in pairwise(times)]


def make_request(number: int, num_prompt_tokens: int) -> NewRequest:
    """Builds a request; no two share a block, and they do not cross block boundaries together."""
    prompt = (number, *range(1, num_prompt_tokens + number % BLOCK_SIZE))
    return NewRequest(request_id=f"r{number}", prompt_token_ids=prompt, max_tokens=10_000)


def make_config(num_running: int, num_prompt_tokens: int, mode: str) -> SchedulerConfig:
    """Builds a configuration in which nothing ever lacks room."""
    max_num_prompt_tokens = num_prompt_tokens + BLOCK_SIZE
    max_num_tokens = max_num_prompt_tokens + NUM_WARM_UP_STEPS + NUM_ROUNDS * NUM_STEPS
    return SchedulerConfig(
        max_num_batched_tokens=num_running * max_num_prompt_tokens,
        max_num_seqs=num_running,
        max_model_len=100_000,
        block_size=BLOCK_SIZE,
        num_blocks=num_running * (max_num_tokens // BLOCK_SIZE + 2),
        **MODES[mode],
    )


def measure(num_running: int, num_prompt_tokens: int, mode: str) -> Row:
    """Measures both engines, round by round in turn, so that a busy machine slows both."""
    config = make_config(num_running, num_prompt_tokens, mode)
    reference = Decoding(ReferenceScheduler, config, num_prompt_tokens)
    fast = Decoding(FastScheduler, config, num_prompt_tokens)
    reference_times: list[float] = []
    fast_times: list[float] = []
    for _ in range(NUM_ROUNDS):
        reference_times += reference.measure_steps()
        fast_times += fast.measure_steps()
    return Row(mode, num_running, 1e6 * median(reference_times), 1e6 * median(fast_times))


def show(rows: list[Row]) -> str:
    """Returns the table."""
    lines = [
        f"{'mode':24}{'running':>8}{'reference':>14}{'fast':>12}{'per request':>14}{'ratio':>8}"
    ]
    lines += [
        f"{row.mode:24}{row.num_running:8}{row.reference_us:11.0f} us{row.fast_us:9.0f} us"
        f"{row.fast_ns_per_request:11.0f} ns{row.ratio:7.1f}x"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    """Prints the table, and writes the figures if asked to."""
    parser = argparse.ArgumentParser(description="Measures what a decode step costs.")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the figures here")
    parser.add_argument(
        "--prompt", type=int, default=500, metavar="N", help="tokens of a prompt (default: 500)"
    )
    arguments = parser.parse_args()
    rows = [
        measure(num_running, arguments.prompt, mode)
        for mode in MODES
        for num_running in (64, 256, 1024)
    ]
    print(show(rows))
    if arguments.json:
        figures = {"num_prompt_tokens": arguments.prompt, "rows": [asdict(row) for row in rows]}
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
