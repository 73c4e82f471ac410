"""Slots by block, and poison in those that nobody has written."""

from __future__ import annotations

import torch

from impl.runner.config import TINY_MODELS
from impl.runner.kv_cache import KVCache

CONFIG = TINY_MODELS["tiny"]


def make_cache(**given):
    """A cache of 5 blocks of 4 slots."""
    return KVCache(CONFIG, 4, 5, **given)


def make_kv(num_tokens):
    """Random keys and values."""
    shape = (2, num_tokens, CONFIG.num_key_value_heads, CONFIG.head_dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_what_is_written_is_read():
    """KV that is written to slots is read along the block table, of its own layer."""
    cache, (key, value) = make_cache(), make_kv(6)
    cache.write(1, torch.tensor([12, 13, 14, 15, 4, 5]), key, value)
    actual = cache.read(1, [3, 1], 6)
    assert torch.equal(key, actual[0])
    assert torch.equal(value, actual[1])
    assert bool(cache.keys[0].isnan().all())


def test_blocks_handed_out_anew_are_poisoned():
    """What a block held before is NaN afterwards, in all layers; other blocks keep theirs."""
    cache, (key, value) = make_cache(), make_kv(8)
    for layer in (0, 1):
        cache.write(layer, torch.arange(4, 12), key, value)
    cache.poison([1])
    for layer in (0, 1):
        for kept, written in zip(cache.read(layer, [1, 2], 8), (key, value), strict=True):
            assert bool(kept[:4].isnan().all())
            assert torch.equal(written[4:], kept[4:])


def test_poison_can_be_left_out():
    """Without poison slots start as zeros, and keep what they hold."""
    cache = make_cache(poison=False)
    cache.poison([1])
    assert float(cache.keys[0].abs().sum()) == 0


def test_nobody_may_know_which_blocks_are_new():
    """An engine that cannot tell poisons nothing."""
    cache, (key, value) = make_cache(), make_kv(4)
    cache.write(0, torch.arange(4, 8), key, value)
    cache.poison(None)
    assert torch.equal(key, cache.read(0, [1], 4)[0])
