"""Schedules that a real engine has made."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from checkers.recording import open_recording
from gpu_conformance.registry import NotHere, Value, axis
from gpu_conformance.way import Arrival, Sights, Way
from gpu_conformance.work import VOCAB_SIZE
from spec.actions import AddRequest, UpdateFromOutput
from spec.interface import NewRequest

NONE = "none"
FOLDER = Path(__file__).parents[2] / "tests" / "recordings"
MAX_IN_FLIGHT = 3
"""Steps of a recorded run."""
NAMES = (
    "thrash",
    "fcfs-preempt-0.16.0",
    "prefix-preempt",
    "async-preempt-aborts",
)
"""Some of each kind; any other is named by its path."""


def _is_reached(seen: Sights, value: Value) -> bool:
    return seen.num_steps > 0


@axis(baseline=NONE, values=NAMES, few=("thrash",), takes_paths=True, is_reached=_is_reached)
def recorded_run(way: Way, value: Value) -> Way:
    """The steps of a recorded run of vLLM, step by step."""
    if value == NONE:
        return way
    path = FOLDER / f"{value}.jsonl.gz"
    if not path.exists() and value in NAMES:
        raise NotHere("the recordings come with the sources only")
    return make_recorded_way(path if path.exists() else Path(str(value)))


def make_recorded_way(path: Path) -> Way:
    """A way along a recorded run; its prompts are folded into the tokens that every model has."""
    recording = open_recording(path)
    arrived: dict[str, NewRequest] = {}
    num_sampled: Counter[str] = Counter()
    for event in recording.events:
        if isinstance(event.action, AddRequest):
            arrived[event.action.request.request_id] = event.action.request
        elif isinstance(event.action, UpdateFromOutput):
            for name, token_ids in event.action.sampled_token_ids.items():
                num_sampled[name] += len(token_ids)
    # What was in flight at the end, or of somebody aborted, is sampled and not recorded.
    arrivals = tuple(
        Arrival(_fold(request, num_sampled[name] + MAX_IN_FLIGHT))
        for name, request in arrived.items()
    )
    return Way(arrivals=arrivals, config=recording.config, recording=path)


def _fold(request: NewRequest, max_tokens: int) -> NewRequest:
    """The request as the runner meets it: so many tokens, whatever they are."""
    prompt = tuple(token_id % VOCAB_SIZE for token_id in request.prompt_token_ids)
    return NewRequest(request_id=request.request_id, prompt_token_ids=prompt, max_tokens=max_tokens)
