"""A scheduler of vLLM without a model, a device or a worker.

Entry point: `make_scheduler`. It builds vLLM's own configuration for a tiny model of which only the
description exists, puts back what vLLM changed in it for the platform, and gives the scheduler a
drafter that is only counted.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import json
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from impl.adapters.vllm_connector import RemoteStore
from spec.interface import ConfigError, SchedulerConfig

ENVIRONMENT = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_LOGGING_LEVEL": "CRITICAL",
    "VLLM_NO_USAGE_STATS": "1",
    # The other runner is told of resumed requests as of new ones.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}
"""What vLLM reads at its import, unless the caller has set it."""
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 65536,
    "torch_dtype": "float32",
}
"""A model's description; the model itself is never built."""
PACKAGE = "vllm"
OURS_ALONE = (
    "reserve_admitted_prefills",
    "reject_too_large",
    "max_num_partial_prefills",
    "max_long_partial_prefills",
)
"""Fields of `SchedulerConfig` for which vLLM's scheduler has nothing."""


@functools.cache
def import_vllm() -> None:
    """Imports what is needed of vLLM, and spares it the inspection of the model's class.

    For that it would start a process that imports all models. Raises ImportError.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        raise ImportError(f"{PACKAGE} is not installed; docs/adapters.md says how it can be")
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Before vLLM, which may plant something in triton's place.
    importlib.import_module("torch._inductor.compile_fx")
    importlib.import_module("vllm.v1.core.sched.async_scheduler")
    from vllm.model_executor.models import registry
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import init_none_hash

    init_none_hash(sha256)
    known: dict[str, Any] = {
        "architecture": MODEL["architectures"],
        "is_text_generation_model": True,
        "supports_pp": True,
        "attn_type": "decoder",
        "default_pooling_type": "LAST",
        "default_seq_pooling_type": "LAST",
        "default_tok_pooling_type": "ALL",
        "score_type": "bi-encoder",
        "supported_video_pruning_methods": (),
    }
    fields = [field.name for field in dataclasses.fields(registry._ModelInfo)]
    info = registry._ModelInfo(**{name: known.get(name, False) for name in fields})
    registry._LazyRegisteredModel.inspect_model_cls = lambda _: info


def make_scheduler(config: SchedulerConfig) -> Any:
    """Builds vLLM's scheduler, the asynchronous one if asked for.

    Raises `ConfigError` if the configuration asks for what vLLM does not have.
    """
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    for name in OURS_ALONE:
        if getattr(config, name):
            raise ConfigError(
                f"{name}={getattr(config, name)} is nothing that vLLM's scheduler knows; "
                "choose a setting without it"
            )
    vllm_config, kv_cache_config = _make_configs(config)
    kind = AsyncScheduler if config.async_scheduling else Scheduler
    scheduler = kind(
        vllm_config=vllm_config,
        kv_cache_config=kv_cache_config,
        # Grammars accept every token here; when they are compiled is the environment's choice.
        structured_output_manager=SimpleNamespace(
            accept_tokens=lambda _request, _token_ids: True,
            validate_tokens=lambda _request, token_ids: token_ids,
        ),
        block_size=config.block_size,
    )
    _set_lookahead(scheduler, config)
    if config.load_kv_async:
        scheduler.connector = RemoteStore(config.block_size)
    scheduler.defer_block_free = config.defer_block_free
    scheduler.defer_async_loads = config.defer_async_loads
    scheduler.kv_cache_manager.watermark_blocks = config.num_watermark_blocks
    # As for models whose new blocks must be zeroed: the step then says which those are.
    scheduler.needs_kv_cache_zeroing = True
    for manager in scheduler.kv_cache_manager.coordinator.single_type_managers:
        manager._record_new_block_ids = True
    return scheduler


def _set_lookahead(scheduler: Any, config: SchedulerConfig) -> None:
    """Sets the slots of a drafter, and what the scheduler has worked out from them."""
    scheduler.num_lookahead_tokens = config.num_lookahead_tokens
    if config.num_speculative_tokens:
        num_tokens = 1 + config.num_speculative_tokens + config.num_lookahead_tokens
        scheduler._spec_decode_step_blocks = -(-num_tokens // config.block_size)


@functools.cache
def _make_configs(config: SchedulerConfig) -> tuple[Any, Any]:
    """Builds a configuration and that of its KV cache: full attention, one group."""
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    vllm_config = VllmConfig(**_make_parts(config))
    vllm_config.speculative_config = _make_drafter(config)
    vllm_config.lora_config = (
        SimpleNamespace(max_loras=config.max_loras) if config.max_loras else None
    )
    _put_back(vllm_config.scheduler_config, _scheduler_fields(config))
    _put_back(
        vllm_config.cache_config,
        {
            "block_size": config.block_size,
            "enable_prefix_caching": config.enable_prefix_caching,
            # The first block is vLLM's null block, which no request is given.
            "num_gpu_blocks": config.num_blocks + 1,
        },
    )
    register_all_kvcache_specs(vllm_config)
    attention = FullAttentionSpec(
        block_size=config.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    groups = [KVCacheGroupSpec(["layer"], attention)]
    return vllm_config, KVCacheConfig(config.num_blocks + 1, [], groups)


def _make_parts(config: SchedulerConfig) -> dict[str, Any]:
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, ParallelConfig
    from vllm.config import SchedulerConfig as VllmSchedulerConfig

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        model_config = ModelConfig(
            model=folder,
            tokenizer=folder,
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=config.max_model_len,
            enforce_eager=True,
        )
    return {
        "model_config": model_config,
        "scheduler_config": VllmSchedulerConfig(
            max_model_len=config.max_model_len, is_encoder_decoder=False
        ),
        "cache_config": CacheConfig(
            block_size=16, enable_prefix_caching=config.enable_prefix_caching
        ),
        "parallel_config": ParallelConfig(),
        "device_config": DeviceConfig("cpu"),
    }


def _scheduler_fields(config: SchedulerConfig) -> dict[str, Any]:
    return {
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_num_scheduled_tokens": config.max_num_scheduled_tokens,
        "max_num_seqs": config.max_num_seqs,
        "long_prefill_token_threshold": config.long_prefill_token_threshold,
        "policy": config.policy,
        "async_scheduling": config.async_scheduling,
        "enable_chunked_prefill": config.enable_chunked_prefill,
        "scheduler_reserve_full_isl": config.scheduler_reserve_full_isl,
    }


def _put_back(config: Any, fields: dict[str, Any]) -> None:
    """Sets what vLLM has changed for its platform, or would not accept for a real model."""
    for name, value in fields.items():
        setattr(config, name, value)


def _make_drafter(config: SchedulerConfig) -> Any:
    """What the scheduler asks of a drafter; one without KV of its own, but for the lookahead."""
    if config.num_speculative_tokens == 0:
        return None
    names = ("eagle", "eagle_block_drop", "dspark", "dflash", "multi_module_mtp")
    methods = {f"use_{name}": lambda: False for name in names}
    return SimpleNamespace(
        num_speculative_tokens=config.num_speculative_tokens,
        max_num_new_slots_for_drafting=config.num_draft_slots,
        num_speculative_tokens_per_batch_size=None,
        disable_eagle_block_drop=False,
        disable_lookahead_block_hashes=False,
        uses_draft_model=lambda: False,
        needs_eagle_block_drop=lambda: False,
        **methods,
    )
