"""Requests as vLLM takes them, and what its block hashes stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from impl.adapters.vllm_connector import make_transfer_params
from spec.interface import BlockContent, NewRequest, RepetitionDetection, SchedulerConfig

Hasher = Callable[[Any], list[Any]]


class BlockContents:
    """Remembers which tokens each block hash was made from."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.block_size = config.block_size
        self.is_enabled = config.enable_prefix_caching
        self._contents: dict[bytes, BlockContent] = {}

    def hasher_of(self, new: NewRequest) -> Hasher | None:
        """Returns vLLM's own hasher for a request, overheard; None without a prefix cache."""
        if not self.is_enabled:
            return None
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher

        compute_hashes = get_request_block_hasher(self.block_size, sha256)

        def overhear(request: Any) -> list[Any]:
            block_hashes: list[Any] = compute_hashes(request)
            for number, block_hash in enumerate(block_hashes, len(request.block_hashes) + 1):
                token_ids = tuple(request.all_token_ids[: number * self.block_size])
                self._contents[bytes(block_hash)] = (new.cache_key, token_ids)
            return block_hashes

        return overhear

    def of_hash(self, block_hash: Any) -> BlockContent:
        """What a block is found by, of its hash with the number of its KV cache group."""
        from vllm.v1.core.kv_cache_utils import get_block_hash

        return self._contents[bytes(get_block_hash(block_hash))]


def make_request(new: NewRequest, hasher: Hasher | None) -> Any:
    """A request as vLLM's engine core would make it."""
    from vllm.lora.request import LoRARequest
    from vllm.v1.request import Request

    lora = LoRARequest(f"lora-{new.lora_id}", new.lora_id, "nowhere") if new.lora_id else None
    return Request(
        request_id=new.request_id,
        prompt_token_ids=list(new.prompt_token_ids),
        sampling_params=_make_sampling_params(new),
        pooling_params=None,
        client_index=new.client_index,
        arrival_time=new.arrival_time,
        lora_request=lora,
        cache_salt=new.cache_salt,
        priority=new.priority,
        block_hasher=hasher,
        resumable=new.resumable,
    )


def _make_sampling_params(new: NewRequest) -> Any:
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams

    params = SamplingParams(
        temperature=0.0,
        max_tokens=new.max_tokens,
        # More than the most output tokens have no effect, and vLLM's front end refuses them.
        min_tokens=min(new.min_tokens, new.max_tokens),
        stop_token_ids=list(new.stop_token_ids),
        ignore_eos=new.eos_token_id is None,
        repetition_detection=_make_repetition_detection(new.repetition_detection),
        structured_outputs=StructuredOutputsParams(regex=".*") if new.structured_output else None,
        extra_args={"kv_transfer_params": make_transfer_params(new)},
    )
    params.update_from_generation_config({}, new.eos_token_id)
    return params


def _make_repetition_detection(wanted: RepetitionDetection | None) -> Any:
    """Builds what vLLM takes; parameters that switch the detection off are none to it."""
    from vllm.sampling_params import RepetitionDetectionParams

    if wanted is None or wanted.min_count < 2 or wanted.min_pattern_size > wanted.max_pattern_size:
        return None
    return RepetitionDetectionParams(
        wanted.max_pattern_size, wanted.min_pattern_size, wanted.min_count
    )
