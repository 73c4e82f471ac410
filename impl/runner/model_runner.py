"""Runs the steps of a scheduler on a model. Entry point: `ModelRunner.execute`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from impl.runner.batch import Part, SampledRequest, StepBatch, make_batch
from impl.runner.config import ModelConfig
from impl.runner.errors import RunnerError
from impl.runner.kv_cache import KVCache
from impl.runner.model import Model, see_nothing
from impl.runner.ops.interface import Ops
from impl.runner.requests import RequestStates
from impl.runner.sampling import GREEDY, SamplingParams, sample
from impl.runner.weights import Weights
from spec.interface import ModelRunnerOutput, SchedulerOutput

Tensor = torch.Tensor


class Tap(Protocol):
    """Sees what a runner computes; it changes nothing."""

    def begin(self, batch: StepBatch) -> None:
        """A step begins: which token each row of it belongs to."""

    def see(self, layer: int, stage: str, rows: Tensor) -> None:
        """Rows are computed, one per token of the step; stages are in `model.STAGES`.

        Those of "final_norm" and "logits" belong to the tokens `batch.logits_rows`.
        """


class ModelRunner:
    """A model, its KV cache, and the requests that a scheduler has told it of.

    Steps are run in the order in which they were scheduled, and the next may be scheduled before
    one is run. Tokens that a dialect drops (`deliver_stale_output=False`) are not dropped here: the
    diff does not tell.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        ops: Ops,
        block_size: int,
        num_blocks: int,
        *,
        sampling_params: Mapping[str, SamplingParams] | None = None,
        poison: bool = True,
    ) -> None:
        self.config = config
        self.ops = ops
        self.block_size = block_size
        self.model = Model(config, weights, ops)
        self.kv_cache = KVCache(
            config, block_size, num_blocks, ops.device, ops.dtype, poison=poison
        )
        self.requests = RequestStates(block_size, num_blocks)
        # By request id; who is not in it is greedy.
        self.sampling_params = {} if sampling_params is None else sampling_params
        self._tap: Tap | None = None

    @property
    def tap(self) -> Tap | None:
        """Who looks at each layer and stage."""
        return self._tap

    @tap.setter
    def tap(self, tap: Tap | None) -> None:
        """Lets somebody look, or nobody."""
        self._tap = tap
        self.model.see = see_nothing if tap is None else tap.see

    @torch.inference_mode()
    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Runs one step, and returns what each of its requests samples.

        Raises `RunnerError` if the step cannot be the next one.
        """
        self.requests.follow(output)
        self.kv_cache.poison(output.new_block_ids_to_zero)
        parts = self._get_parts(output)
        sampled: dict[str, list[int]] = {part.request.request_id: [] for part in parts}
        if parts:
            batch = make_batch(parts, self.block_size, self.ops.device)
            for request, logits in self._compute(batch):
                sampled[request.request_id] = self._sample(request, logits)
        self._settle(parts, sampled)
        return ModelRunnerOutput(sampled)

    def _get_parts(self, output: SchedulerOutput) -> list[Part]:
        parts = [
            Part(
                self.requests[request_id],
                num_tokens,
                output.scheduled_spec_decode_tokens.get(request_id, []),
            )
            for request_id, num_tokens in output.num_scheduled_tokens.items()
        ]
        for part in parts:
            if part.positions.stop > self.config.max_position_embeddings:
                raise RunnerError(
                    f"{part.request.request_id} runs up to token {part.positions.stop}, however "
                    f"max_position_embeddings={self.config.max_position_embeddings}; "
                    "schedule with a max_model_len of at most that"
                )
        return parts

    def _compute(self, batch: StepBatch) -> list[tuple[SampledRequest, Tensor]]:
        """Runs the model; returns who samples, each with its rows of logits."""
        if self._tap is not None:
            self._tap.begin(batch)
        hidden = self.model.forward(batch.token_ids, batch.slots, batch.attention, self.kv_cache)
        if not batch.sampled:
            return []
        logits = self.model.compute_logits(hidden[batch.logits_rows])
        return [(request, logits[request.logits_slice]) for request in batch.sampled]

    def _sample(self, request: SampledRequest, logits: Tensor) -> list[int]:
        """Samples after each draft for as long as the drafts before it are what was sampled."""
        params = self.sampling_params.get(request.request_id, GREEDY)
        token_ids: list[int] = []
        for number, row in enumerate(logits):
            position = request.position + number
            token_ids.append(sample(row, params, request.request_id, position))
            if token_ids[-1] not in request.draft_token_ids[number : number + 1]:
                break
        return token_ids

    def _settle(self, parts: list[Part], sampled: dict[str, list[int]]) -> None:
        """Counts what was computed, less the drafts that were rejected, and keeps what is new."""
        for part in parts:
            request = part.request
            token_ids = sampled[request.request_id]
            num_rejected = len(part.draft_token_ids) + 1 - len(token_ids) if token_ids else 0
            if num_rejected > 0:
                request.num_rejected.append(num_rejected)
            request.num_computed_tokens += part.num_tokens - num_rejected
            request.token_ids += token_ids
