from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkers.configs import load_settings
from checkers.walk import draw_action
from proofs.symbolic.pools import AnyHitsPool, PublicationPool
from spec.block_pool import BlockPool
from spec.interface import NewRequest
from spec.model import Model
from spec.request import Request
from spec.scheduler import ReferenceScheduler

CACHING = [s for s in load_settings().values() if s.scheduler.enable_prefix_caching]


class WatchedPool(BlockPool):
    """The real pool; `breaches` tells what it did that the abstraction cannot do."""

    def __init__(self, config):
        super().__init__(
            config.num_blocks,
            config.block_size,
            config.enable_prefix_caching,
            config.uncached_blocks_first,
        )
        self.breaches = []
        self.num_hits = 0

    def find_longest_cache_hit(self, request):
        """As the parent."""
        hit = super().find_longest_cache_hit(request)
        self.num_hits += hit.num_blocks > 0
        most = (request.num_tokens - 1) // self.block_size
        self._expect(0 <= hit.num_blocks <= most, "a hit leaves a token to compute")
        most = min(hit.num_blocks, self.num_free_blocks)
        self._expect(0 <= hit.num_free_blocks <= most, "free hit blocks are hit, and free")
        return hit

    def free(self, request):
        """As the parent."""
        num_free_blocks, num_blocks = self.num_free_blocks, request.num_blocks
        super().free(request)
        most = min(num_blocks, self.num_blocks - num_free_blocks)
        num_given_back = self.num_free_blocks - num_free_blocks
        self._expect(0 <= num_given_back <= most, "what comes back was held")

    def allocate(self, request, hit, num_new_blocks):
        """As the parent."""
        expected = (
            self.num_free_blocks - hit.num_free_blocks - num_new_blocks,
            request.num_blocks + hit.num_blocks + num_new_blocks,
        )
        new_block_ids = super().allocate(request, hit, num_new_blocks)
        counts = (self.num_free_blocks, request.num_blocks)
        self._expect(counts == expected, "blocks are counted over")
        return new_block_ids

    def _expect(self, holds, sentence):
        if not holds:
            self.breaches.append(sentence)


@pytest.mark.parametrize("setting", CACHING, ids=lambda setting: setting.name)
def test_the_real_pool_does_nothing_that_the_abstraction_cannot(setting):
    """In random walks every hit, grant and return of the real pool is one that any-hits allows."""
    num_hits = 0
    for seed in range(8):
        pool = WatchedPool(setting.scheduler)
        model = Model(setting.environment, ReferenceScheduler(setting.scheduler, pool))
        rng = random.Random(seed)
        for _ in range(150):
            action = draw_action(model, rng)
            if action is None:
                break
            model.do(action)
        assert [] == pool.breaches
        num_hits += pool.num_hits
    assert num_hits > 0


def make_request(num_tokens, num_blocks):
    """A request of the pool tests."""
    request = Request(NewRequest(request_id="r0", prompt_token_ids=(0,) * num_tokens, max_tokens=1))
    request.num_blocks = num_blocks
    return request


@given(st.integers(-9, 99), st.integers(-9, 99), st.integers(1, 40), st.integers(0, 10))
def test_any_choice_is_clamped_to_what_a_cache_can_do(first, second, num_tokens, num_free):
    """Whatever numbers it is given, the pool finds a possible hit and gives back what was held."""
    choices = {"choice1": first, "choice2": second, "choice3": first}
    pool = AnyHitsPool(10, 4, choices.__getitem__)
    pool.num_free_blocks = num_free
    request = make_request(num_tokens, 10 - num_free)
    hit = pool.find_longest_cache_hit(request)
    assert 0 <= hit.num_blocks <= (num_tokens - 1) // 4
    assert 0 <= hit.num_free_blocks <= min(hit.num_blocks, num_free)
    pool.free(request)
    assert num_free <= pool.num_free_blocks <= 10
    assert 0 == request.num_blocks


NUMBERS = {"r0.num_published_tokens": 0, "choice1": 0}


@given(st.lists(st.integers(0, 40), max_size=5))
def test_publications_are_counted_in_full_blocks(counts):
    """What is findable is the longest prefix of full blocks that was ever published."""
    pool = PublicationPool(10, 4, NUMBERS.__getitem__, ["r0"])
    request = make_request(40, 10)
    for count in counts:
        pool.cache_full_blocks(request, count)
    expected = max([count // 4 * 4 for count in counts], default=0)
    assert expected == pool.num_published_tokens["r0"]
    pool.free(request)
    assert (0, expected) == (pool.num_published_tokens["r0"], pool.num_left_tokens["r0"])
