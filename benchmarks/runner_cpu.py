"""Measures what the same bits cost on a CPU: `python benchmarks/runner_cpu.py`.

A 4-layer model of about 16 million parameters runs a whole prompt, and steps in which every request
decodes, on the backends `plain` (ordinary torch) and `tile`. A time is of one
`ModelRunner.execute`: the median over rounds, in which the backends take turns. Beside it stand the
rows that differ from those of another schedule, of the last logits and of the last layer's KV: none
is what `tile` costs time for. A prompt is run again in chunks of 33, who decodes is run alone.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path
from statistics import median

import torch
from attrs import asdict, frozen

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from impl.runner.batch import StepBatch  # noqa: E402
from impl.runner.config import ModelConfig  # noqa: E402
from impl.runner.model_runner import ModelRunner  # noqa: E402
from impl.runner.ops.backends import make_ops  # noqa: E402
from impl.runner.ops.interface import Ops  # noqa: E402
from impl.runner.weights import Weights, make_weights  # noqa: E402
from spec.interface import CachedRequestData, NewRequestData, SchedulerOutput  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "runner_cpu.json"
BACKENDS = ("plain", "tile")
NUM_THREADS = 1
BLOCK_SIZE = 16
NUM_BLOCKS = 512
MODEL = ModelConfig(
    vocab_size=8192,
    hidden_size=512,
    intermediate_size=1408,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=64,
    max_position_embeddings=1024,
    tie_word_embeddings=True,
)
NUM_DECODED = 200
"""Tokens that a request has when decoding is measured."""


@frozen
class Row:
    """One line of the table."""

    work: str
    plain_ms: float
    """Per step."""
    tile_ms: float
    """Per step."""
    rows_compared: int
    plain_rows_differing: int
    tile_rows_differing: int

    @property
    def ratio(self) -> float:
        """How many times longer `tile` takes."""
        return self.tile_ms / self.plain_ms


class LastLogits:
    """A tap that keeps the logits of the last step, by request."""

    def __init__(self) -> None:
        self.rows: dict[str, torch.Tensor] = {}
        self.request_ids: list[str] = []

    def begin(self, batch: StepBatch) -> None:
        """Notes who samples."""
        self.request_ids = [request.request_id for request in batch.sampled]

    def see(self, layer: int, stage: str, rows: torch.Tensor) -> None:
        """Keeps logits."""
        if stage == "logits":
            self.rows = dict(zip(self.request_ids, rows.clone(), strict=True))


def make_prompt(number: int, num_tokens: int) -> tuple[int, ...]:
    """Makes a prompt; no two are the same."""
    generator = torch.Generator().manual_seed(number)
    return tuple(torch.randint(0, MODEL.vocab_size, (num_tokens,), generator=generator).tolist())


def make_prefill(numbers: Iterator[int], num_tokens: int, name: int) -> SchedulerOutput:
    """Makes a step that computes a whole prompt; `numbers` are blocks that nobody holds."""
    block_ids = [next(numbers) for _ in range(num_tokens // BLOCK_SIZE + 1)]
    new = NewRequestData(make_prompt(name, num_tokens), 0, block_ids)
    return SchedulerOutput({f"r{name}": num_tokens}, {f"r{name}": new})


def make_decode(num_requests: int, num_computed_tokens: int) -> SchedulerOutput:
    """Makes a step in which every request computes the token that it sampled last."""
    names = [f"r{n}" for n in range(num_requests)]
    cached = {name: CachedRequestData(False, [], num_computed_tokens) for name in names}
    return SchedulerOutput(dict.fromkeys(names, 1), {}, cached)


@cache
def get_ops(backend: str) -> Ops:
    """Returns the one backend of a name, which remembers what it has found out of shapes."""
    return make_ops(backend)


def make_runner(backend: str, weights: Weights) -> ModelRunner:
    """Makes a runner whose logits are kept."""
    runner = ModelRunner(MODEL, weights, get_ops(backend), BLOCK_SIZE, NUM_BLOCKS)
    runner.tap = LastLogits()
    return runner


def time_execute(runner: ModelRunner, output: SchedulerOutput) -> float:
    """Returns how long a step takes, in milliseconds of CPU time."""
    start = time.process_time()
    runner.execute(output)
    return 1000 * (time.process_time() - start)


def measure_prefill(weights: Weights, num_tokens: int, num_rounds: int) -> Row:
    """Measures one prompt, whole."""
    times: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
    for _ in range(num_rounds + 1):
        for backend in BACKENDS:
            runner = make_runner(backend, weights)
            times[backend].append(time_execute(runner, make_prefill(count(1), num_tokens, 0)))
    differing = [count_differing_prefill(weights, backend, num_tokens) for backend in BACKENDS]
    return make_row(f"prefill of {num_tokens}", times, num_tokens + 1, differing)


def count_differing_prefill(weights: Weights, backend: str, num_tokens: int) -> int:
    """Counts the rows that differ between a whole prompt and chunks of 33."""
    whole, chunked = make_runner(backend, weights), make_runner(backend, weights)
    whole.execute(make_prefill(count(1), num_tokens, 0))
    first = make_prefill(count(1), num_tokens, 0)
    first.num_scheduled_tokens["r0"] = 33
    chunked.execute(first)
    for start in range(33, num_tokens, 33):
        cached = {"r0": CachedRequestData(False, [], start)}
        chunked.execute(SchedulerOutput({"r0": min(33, num_tokens - start)}, {}, cached))
    return count_differing(whole, chunked, "r0", num_tokens)


def count_differing(
    expected: ModelRunner, actual: ModelRunner, request_id: str, num_tokens: int
) -> int:
    """Counts the rows of a request of which not every bit is the same."""
    pairs = zip(
        get_rows(expected, request_id, num_tokens),
        get_rows(actual, request_id, num_tokens),
        strict=True,
    )
    return sum(not torch.equal(old, new) for old, new in pairs)


def get_rows(runner: ModelRunner, request_id: str, num_tokens: int) -> list[torch.Tensor]:
    """Returns a request's last logits, and the last layer's KV of each token."""
    assert isinstance(runner.tap, LastLogits)
    block_ids = runner.requests[request_id].block_ids
    key, value = runner.kv_cache.read(MODEL.num_hidden_layers - 1, block_ids, num_tokens)
    return [runner.tap.rows[request_id], *torch.stack([key, value], dim=1)]


def measure_decode(weights: Weights, num_requests: int, num_rounds: int) -> Row:
    """Measures steps in which all requests decode."""
    runners = {backend: make_runner(backend, weights) for backend in BACKENDS}
    times: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
    for runner in runners.values():
        numbers = count(1)
        for name in range(num_requests):
            runner.execute(make_prefill(numbers, NUM_DECODED, name))
    # A block more would be needed after so many steps.
    num_steps = min(num_rounds + 1, BLOCK_SIZE - NUM_DECODED % BLOCK_SIZE)
    for step in range(num_steps):
        for backend, runner in runners.items():
            output = make_decode(num_requests, NUM_DECODED + step)
            times[backend].append(time_execute(runner, output))
    differing = [
        sum(
            count_differing_decode(weights, runner, name, num_steps) for name in range(num_requests)
        )
        for runner in runners.values()
    ]
    rows_compared = num_requests * (NUM_DECODED + num_steps + 1)
    return make_row(f"decode of {num_requests}", times, rows_compared, differing)


def count_differing_decode(
    weights: Weights, together: ModelRunner, name: int, num_steps: int
) -> int:
    """Counts the rows of a request that differ from those of the request alone."""
    alone = make_runner(together.ops.name, weights)
    alone.execute(make_prefill(count(1), NUM_DECODED, name))
    for step in range(num_steps):
        cached = {f"r{name}": CachedRequestData(False, [], NUM_DECODED + step)}
        alone.execute(SchedulerOutput({f"r{name}": 1}, {}, cached))
    return count_differing(alone, together, f"r{name}", NUM_DECODED + num_steps)


def make_row(
    work: str, times: dict[str, list[float]], rows_compared: int, differing: list[int]
) -> Row:
    """Makes a line; the first round warms up, and does not count."""
    plain_ms, tile_ms = (median(times[backend][1:]) for backend in BACKENDS)
    return Row(work, plain_ms, tile_ms, rows_compared, *differing)


def show(rows: list[Row]) -> str:
    """Returns the table."""
    lines = [
        f"{'work':18}{'plain':>12}{'tile':>12}{'ratio':>8}{'rows differing, plain and tile':>34}"
    ]
    lines += [
        f"{row.work:18}{row.plain_ms:9.1f} ms{row.tile_ms:9.1f} ms{row.ratio:7.2f}x"
        f"{row.plain_rows_differing:24} {row.tile_rows_differing:4} of {row.rows_compared}"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    """Prints the table, and stores it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7, help="rounds per line")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the figures go")
    options = parser.parse_args()
    torch.set_num_threads(NUM_THREADS)
    weights = make_weights(MODEL)
    rows = [measure_prefill(weights, n, options.rounds) for n in (64, 256, 512)]
    rows += [measure_decode(weights, n, options.rounds) for n in (1, 8, 32)]
    print(show(rows))
    figures = {
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "num_threads": NUM_THREADS,
        "rows": [{**asdict(row), "ratio": row.ratio} for row in rows],
    }
    options.output.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
