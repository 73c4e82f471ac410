"""Our engine's block pool beside the spec's: the same operation on both, from every pair of states.

Entry point: `PoolWorld`. A request in it is a block table and a text; what a scheduler computes is
left out, so it may do whatever the pools' preconditions allow, in any order: be admitted with any
text, take blocks, come to know a token, publish, lose its blocks.

Both must give the same answers, block ids included, and be in the same state afterwards. Two pairs
count as one if they differ in names only, of blocks or requests, or in the numbers of chains: all
that anybody asks of a name is whether it is another one's. What the free queue's arrays hold of
blocks that are not free does not count either (any_number_our_free_block_queue_is_a_list).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

from attrs import define, field, frozen

from impl import block_pool as ours
from impl.prefix_cache import Parent, PrefixCache
from impl.request import Request as OurRequest
from impl.request import make_request
from proofs.side_by_side import Comparison, Operation
from spec import block_pool as spec
from spec.block_pool import CountedBlockPool, cdiv
from spec.interface import BlockContent, NewRequest, SchedulerConfig
from spec.request import Request


class OpenCache(PrefixCache):
    """The real prefix cache; its chains can be looked at."""

    def content_of(self, parent: Parent) -> BlockContent:
        """Returns what a chain stands for; what is no chain is a salt, and stands for nothing."""
        if not isinstance(parent, int):
            return parent, ()
        before, token_ids = self._chains[parent].key
        salt, tokens_before = self.content_of(before)
        return salt, tokens_before + token_ids

    def chains(self) -> dict[BlockContent, tuple[list[int], int]]:
        """Returns the blocks of each chain, oldest first, and how many chains extend it."""
        return {
            self.content_of(number): (list(chain.block_ids), chain.num_children)
            for number, chain in self._chains.items()
        }


@define
class Slot:
    """A request on both sides; without blocks it is not admitted, and its text means nothing."""

    ours: OurRequest
    spec: Request

    def arrive(self, token_ids: tuple[int, ...]) -> None:
        """Gives it a text."""
        self.ours.token_ids, self.ours.num_tokens = list(token_ids), len(token_ids)
        self.spec.token_ids, self.spec.num_prompt_tokens = token_ids, len(token_ids)
        self.spec.num_output_tokens = 0

    def append(self, token_id: int) -> None:
        """Makes a token known."""
        self.ours.token_ids.append(token_id)
        self.ours.num_tokens += 1
        self.spec.append_output_token(token_id)


@define
class PoolPair:
    """Both pools, and who holds blocks of them."""

    ours: ours.BlockPool
    spec: spec.BlockPool
    slots: list[Slot]
    cache: OpenCache
    """Of our pool."""


@frozen
class PoolWorld:
    """All pools within some bounds."""

    num_blocks: int
    block_size: int
    salts: tuple[str | None, ...]
    """Of each request."""
    max_num_tokens: int
    """The most tokens of a request."""
    num_letters: int = 1
    """How many different tokens there are."""
    enable_caching: bool = True
    uncached_blocks_first: bool = True
    texts: list[tuple[int, ...]] = field(init=False)

    @texts.default
    def _make_texts(self) -> list[tuple[int, ...]]:
        letters, lengths = range(self.num_letters), range(1, self.max_num_tokens + 1)
        return [text for length in lengths for text in itertools.product(letters, repeat=length)]

    @property
    def label(self) -> str:
        """What it is called in a report."""
        order = "uncached first" if self.uncached_blocks_first else "in order"
        cache = f"{self.num_letters} different" if self.enable_caching else "no cache"
        salts = f", {len(set(self.salts))} salts" if len(set(self.salts)) > 1 else ""
        return (
            f"{self.num_blocks} blocks of {self.block_size}, {len(self.salts)} requests of up to "
            f"{self.max_num_tokens} tokens ({cache}{salts}), freed {order}"
        )

    def start(self) -> PoolPair:
        """Builds both pools, all free."""
        config = SchedulerConfig(
            max_num_batched_tokens=self.max_num_tokens,
            max_num_seqs=len(self.salts),
            max_model_len=self.max_num_tokens,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            enable_prefix_caching=self.enable_caching,
            uncached_blocks_first=self.uncached_blocks_first,
        )
        our_pool, cache = ours.BlockPool(config), OpenCache()
        our_pool.prefix_cache = cache
        spec_pool = spec.BlockPool(
            self.num_blocks, self.block_size, self.enable_caching, self.uncached_blocks_first
        )
        return PoolPair(our_pool, spec_pool, list(map(self._make_slot, self.salts)), cache)

    def _make_slot(self, salt: str | None) -> Slot:
        new = NewRequest(
            request_id="a", prompt_token_ids=(), max_tokens=self.max_num_tokens, cache_salt=salt
        )
        return Slot(make_request(new, self.max_num_tokens), Request(new))

    # ---- what may happen -------------------------------------------------------------------------

    def operations(self, pair: PoolPair) -> Iterator[Operation[PoolPair]]:
        """Yields all that may happen to a request; of those without blocks, alike, the first."""
        idle: set[str | None] = set()
        for index, slot in enumerate(pair.slots):
            if slot.spec.block_ids:
                yield from self._operations_on(pair, index)
            elif slot.spec.cache_key not in idle:
                idle.add(slot.spec.cache_key)
                yield from self._admissions(pair, index)

    def _admissions(self, pair: PoolPair, index: int) -> Iterator[Operation[PoolPair]]:
        """An admission takes a new block at least, since a token is left to compute."""
        slot = pair.slots[index]
        yield Operation(f"r{index} looks its text up", partial(self._look_up, index))
        for text in self.texts:
            slot.arrive(text)
            hit = pair.spec.find_longest_cache_hit(slot.spec)
            most = min(
                cdiv(len(text), self.block_size) - hit.num_blocks,
                pair.spec.num_free_blocks - hit.num_free_blocks,
            )
            for num_new_blocks in range(1, most + 1):
                yield Operation(
                    f"r{index} is admitted with {list(text)}, new blocks: {num_new_blocks}",
                    partial(self._admit, index, text, num_new_blocks),
                )

    def _operations_on(self, pair: PoolPair, index: int) -> Iterator[Operation[PoolPair]]:
        request = pair.slots[index].spec
        num_held = len(request.block_ids)
        most = cdiv(self.max_num_tokens, self.block_size) - num_held
        for num_new_blocks in range(min(most, pair.spec.num_free_blocks) + 1):
            yield Operation(
                f"r{index} takes new blocks: {num_new_blocks}",
                partial(self._grow, index, num_new_blocks),
            )
        for num_tokens in range(1, num_held * self.block_size + 1):
            yield Operation(
                f"r{index} publishes tokens: {num_tokens}", partial(_publish, index, num_tokens)
            )
        if request.num_tokens < self.max_num_tokens:
            for token_id in range(self.num_letters):
                yield Operation(f"r{index} samples {token_id}", partial(_sample, index, token_id))
        yield Operation(f"r{index} loses its blocks", partial(_free, index))

    def _look_up(self, index: int, pair: PoolPair) -> Iterator[Comparison]:
        """Looks for any text, whether there is room for it or not."""
        slot = pair.slots[index]
        for text in self.texts:
            slot.arrive(text)
            expected = pair.spec.find_longest_cache_hit(slot.spec)
            found = pair.ours.find_longest_cache_hit(slot.ours)
            yield f"blocks hit by {list(text)}", expected.block_ids, list(found.block_ids)
            yield "free blocks among them", expected.num_free_blocks, found.num_free_blocks

    def _admit(
        self, index: int, text: tuple[int, ...], num_new_blocks: int, pair: PoolPair
    ) -> Iterator[Comparison]:
        slot = pair.slots[index]
        slot.arrive(text)
        spec_hit = pair.spec.find_longest_cache_hit(slot.spec)
        our_hit = pair.ours.find_longest_cache_hit(slot.ours)
        yield from self._allocate(pair, slot, num_new_blocks, spec_hit, our_hit)

    def _grow(self, index: int, num_new_blocks: int, pair: PoolPair) -> Iterator[Comparison]:
        yield from self._allocate(pair, pair.slots[index], num_new_blocks, spec.NO_HIT, ours.NO_HIT)

    def _allocate(
        self,
        pair: PoolPair,
        slot: Slot,
        num_new_blocks: int,
        spec_hit: spec.CacheHit,
        our_hit: ours.CacheHit,
    ) -> Iterator[Comparison]:
        num_blocks = slot.spec.num_blocks + spec_hit.num_blocks + num_new_blocks
        num_tokens = num_blocks * self.block_size
        counted, holder = _count(pair, slot)
        counted.allocate(holder, spec_hit, num_new_blocks)
        yield (
            "blocks that are lacking",
            num_new_blocks,
            pair.ours.compute_num_new_blocks(slot.ours, num_tokens, our_hit),
        )
        yield (
            "new blocks",
            pair.spec.allocate(slot.spec, spec_hit, num_new_blocks),
            pair.ours.allocate(slot.ours, num_new_blocks, our_hit),
        )
        yield "free blocks as counted", counted.num_free_blocks, pair.ours.num_free_blocks
        yield "held blocks as counted", holder.num_blocks, len(slot.ours.block_ids)

    # ---- what is compared ------------------------------------------------------------------------

    def compare(self, pair: PoolPair) -> Iterator[Comparison]:
        """All that both remember, and what our scheduler relies on."""
        spec_pool, our_pool = pair.spec, pair.ours
        # Each block is told once, so the second time there is nothing to tell.
        for _ in range(2):
            yield "taken blocks", spec_pool.take_new_block_ids(), our_pool.take_new_block_ids()
        yield "num_free_blocks", spec_pool.num_free_blocks, our_pool.num_free_blocks
        yield "free blocks", spec_pool.free_block_queue, our_pool.free_block_queue.to_list()
        yield "ref_cnt", [0, *spec_pool.ref_cnt.values()], our_pool.ref_cnt
        chains = pair.cache.chains()
        published = {content: block_ids for content, (block_ids, _) in chains.items() if block_ids}
        yield "published blocks, oldest first", spec_pool.cached_blocks, published
        contents = {each: pair.cache.get_content(each) for each in pair.cache.get_block_ids()}
        yield "contents", spec_pool.block_hash, contents
        for slot in pair.slots:
            yield "block table", slot.spec.block_ids, slot.ours.block_ids
            if slot.spec.block_ids:
                yield from self._compare_decodes(spec_pool, slot)

    def _compare_decodes(self, pool: spec.BlockPool, slot: Slot) -> Iterator[Comparison]:
        """While fewer than `decode_until` tokens are computed, a token needs nobody's attention."""
        decode_until = slot.ours.decode_until
        num_full_blocks = min(decode_until, slot.spec.num_tokens) // self.block_size
        is_published = [block_id in pool.block_hash for block_id in slot.spec.block_ids]
        yield "a decode has a block", True, decode_until <= len(is_published) * self.block_size
        yield "a decode leaves a place", True, decode_until < slot.ours.max_num_tokens
        if self.enable_caching:
            yield "a decode publishes nothing", True, all(is_published[:num_full_blocks])

    def key(self, pair: PoolPair) -> tuple[object, ...]:
        """Our side, its blocks named by first appearance; the spec's has been found to be alike."""
        keys = [_key_of(pair.cache, slot.ours) for slot in pair.slots]
        # Requests have no names either.
        order = sorted(range(len(keys)), key=lambda index: keys[index][:3])
        names: dict[int, int] = {}
        tables = [pair.slots[index].ours.block_ids for index in order]
        for block_id in itertools.chain(*tables, pair.ours.free_block_queue):
            names.setdefault(block_id, len(names))
        return (
            tuple([keys[index] for index in order]),
            tuple([tuple([names[each] for each in table]) for table in tables]),
            tuple([names[each] for each in pair.ours.free_block_queue]),
            frozenset(
                (content, tuple([names[each] for each in block_ids]), num_children)
                for content, (block_ids, num_children) in pair.cache.chains().items()
            ),
        )


def _key_of(cache: OpenCache, request: OurRequest) -> tuple[Any, ...]:
    """All that our pool remembers of a request, but for its table."""
    key = (repr(request.cache_key), request.num_cached_blocks)
    if not request.block_ids:
        return (*key, (), request.last_chain)
    last_content = cache.content_of(request.last_chain)
    return (*key, tuple(request.token_ids), last_content, request.decode_until)


def _publish(index: int, num_tokens: int, pair: PoolPair) -> Iterator[Comparison]:
    slot = pair.slots[index]
    pair.spec.cache_full_blocks(slot.spec, min(num_tokens, slot.spec.num_tokens))
    pair.ours.cache_full_blocks(slot.ours, num_tokens)
    yield from ()


def _sample(index: int, token_id: int, pair: PoolPair) -> Iterator[Comparison]:
    pair.slots[index].append(token_id)
    yield from ()


def _free(index: int, pair: PoolPair) -> Iterator[Comparison]:
    slot = pair.slots[index]
    counted, holder = _count(pair, slot)
    counted.free(holder)
    num_shared = sum(pair.spec.ref_cnt[block_id] > 1 for block_id in slot.spec.block_ids)
    pair.spec.free(slot.spec)
    pair.ours.free(slot.ours)
    expected = counted.num_free_blocks - num_shared
    yield "free blocks as counted, but for shared ones", expected, pair.ours.num_free_blocks


def _count(pair: PoolPair, slot: Slot) -> tuple[CountedBlockPool, Request]:
    """A counted pool and a request as they are now, to be asked what the counts should become."""
    counted = CountedBlockPool(pair.spec.num_blocks)
    counted.num_free_blocks = pair.ours.num_free_blocks
    return counted, copy.copy(slot.spec)
