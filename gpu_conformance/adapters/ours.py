"""Our own scheduler and runner as a live engine: what the suite for engines is itself tested with.

Entry point: `Ours`.
"""

from __future__ import annotations

import torch

from gpu_conformance.follow import follow
from gpu_conformance.ledger import Ledger, Part
from gpu_conformance.live.interface import NUM_LOGPROBS, Answer, Served
from gpu_conformance.runners import OurRunner, Runner
from gpu_conformance.subject import make_subject
from gpu_conformance.way import BLOCK_SIZE, Way
from spec.interface import ModelRunnerOutput


class Ours:
    """Can be asked for every way there is. Computes by tiles on a CPU, by Triton on CUDA."""

    block_size = BLOCK_SIZE

    def __init__(self, model: str, dtype: str, device: str) -> None:
        backend = "tile" if device == "cpu" else "triton"
        self.subject = make_subject(model, backend, dtype, device)

    def serve(self, way: Way) -> Served:
        """Runs a way step by step."""
        client, ledger = _Client(), Ledger(way)
        follow(way, self.subject, client, ledger)
        answers = {
            # Of a step that was planned before the last token was known, nothing is delivered.
            request.request_id: client.get_answer(request.request_id, request.max_tokens)
            for request in way.requests
        }
        return Served(answers, ledger.sights)


class _Client:
    """Keeps what comes back, and nothing of how it was computed."""

    def __init__(self) -> None:
        self.token_ids: dict[str, list[int]] = {}
        self.logprobs: dict[str, list[dict[int, float]]] = {}

    def get_answer(self, request_id: str, max_tokens: int) -> Answer:
        """All that came for a request, up to its last token."""
        token_ids = self.token_ids.get(request_id, [])[:max_tokens]
        return Answer(tuple(token_ids), tuple(self.logprobs.get(request_id, [])[:max_tokens]))

    def meet(self, runner: Runner) -> None:
        """Needs nothing of it before it runs."""

    def watch(self, runner: Runner, parts: list[Part], result: ModelRunnerOutput) -> None:
        """Enters the tokens of a step."""
        assert isinstance(runner, OurRunner), "it was made here"
        for name, sampled in result.sampled_token_ids.items():
            rows = runner.get_logits().get(name, torch.empty(0))[: len(sampled)]
            self.token_ids.setdefault(name, []).extend(sampled)
            self.logprobs.setdefault(name, []).extend(map(find_greatest, rows))


def find_greatest(logits: torch.Tensor) -> dict[int, float]:
    """The greatest log-probabilities of a row, by token: logits [vocab_size], float32."""
    found = logits.log_softmax(dim=-1).topk(NUM_LOGPROBS)
    return dict(zip(found.indices.tolist(), found.values.tolist(), strict=True))
