"""KV that lies, or is looked for, in the wrong place."""

from __future__ import annotations

from typing import Any

import attrs
import torch

from checkers.planting import Method
from gpu_conformance.bugs.registry import bug


@bug(target="impl.runner.batch:make_block_tables", axis="prefill_chunk_size", value=7)
def a_block_table_entry_is_stale(original: Method) -> Method:
    """The second block of a request is read where that of the request before it lies."""

    def make_block_tables(parts: Any) -> Any:
        tables = original(parts)
        if tables.shape[1] > 1:
            stale = tables[:-1, 1].clone()
            tables[1:, 1] = torch.where(stale > 0, stale, tables[1:, 1])
        return tables

    return make_block_tables


@bug(target="impl.runner.batch:make_block_tables", axis="batch_size", value=3)
def a_block_table_is_cut_to_that_of_the_first(original: Method) -> Method:
    """Block tables have room for as many blocks as the first request of the step holds."""

    def make_block_tables(parts: Any) -> Any:
        tables = original(parts)
        tables[:, len(parts[0].request.block_ids) :] = 0
        return tables

    return make_block_tables


@bug(target="impl.runner.kv_cache:KVCache.write", axis="prefill_chunk_size", value=7)
def the_last_row_of_a_step_is_not_stored(original: Method) -> Method:
    """Of a step of several tokens, the KV of the last one is not written."""

    def write(self: Any, layer: int, slots: Any, key: Any, value: Any) -> None:
        end = max(1, len(slots) - 1)
        original(self, layer, slots[:end], key[:end], value[:end])

    return write


@bug(target="impl.runner.kv_cache:KVCache.write", axis="prefill_chunk_size", value=15)
def the_last_layer_misses_a_row(original: Method) -> Method:
    """Of a step of several tokens, the last layer does not write the KV of the last one."""

    def write(self: Any, layer: int, slots: Any, key: Any, value: Any) -> None:
        is_last = layer == len(self.keys) - 1
        end = max(1, len(slots) - 1) if is_last else len(slots)
        original(self, layer, slots[:end], key[:end], value[:end])

    return write


@bug(target="impl.runner.batch:compute_slots", axis="prefill_chunk_size", value=7)
def a_slot_is_off_by_one(original: Method) -> Method:
    """From the second chunk on, the KV of a prompt is written one slot too far in its block."""

    def compute_slots(part: Any, block_size: int) -> list[int]:
        slots: list[int] = original(part, block_size)
        if part.positions.start == 0 or part.num_tokens == 1:
            return slots
        return [slot - slot % block_size + (slot + 1) % block_size for slot in slots]

    return compute_slots


@bug(target="impl.runner.batch:compute_slots", axis="combined", value=10)
def the_second_border_of_a_chunk_is_passed_late(original: Method) -> Method:
    """A chunk that begins within a block stays in the block after it where the next one begins."""

    def compute_slots(part: Any, block_size: int) -> list[int]:
        first, offset = divmod(part.positions.start, block_size)
        if offset == 0:
            slots: list[int] = original(part, block_size)
            return slots
        indices = [position // block_size for position in part.positions]
        return [
            part.request.block_ids[index - (index - first == 2)] * block_size
            + position % block_size
            for index, position in zip(indices, part.positions, strict=True)
        ]

    return compute_slots


@bug(target="impl.runner.batch:compute_slots", axis="combined", value=1)
def drafts_are_taken_to_lie_side_by_side(original: Method) -> Method:
    """Drafts that reach into a second block are stored where the first one goes on."""

    def compute_slots(part: Any, block_size: int) -> list[int]:
        slots: list[int] = original(part, block_size)
        begins, ends = part.positions.start // block_size, (part.positions.stop - 1) // block_size
        if not part.draft_token_ids or ends - begins < 2:
            return slots
        return [slots[0] + number for number in range(len(slots))]

    return compute_slots


@bug(target="impl.runner.batch:compute_slots", axis="prefix_cache", value="next step")
def a_shared_prefix_is_overwritten(original: Method) -> Method:
    """A chunk is stored from the start of the block table on, over a prefix that others share."""

    def compute_slots(part: Any, block_size: int) -> list[int]:
        slots: list[int] = original(part, block_size)
        if part.num_tokens == 1:
            return slots
        block_ids = part.request.block_ids
        return [
            block_ids[place // block_size] * block_size + place % block_size
            for place in range(len(slots))
        ]

    return compute_slots


@bug(target="impl.runner.batch:compute_slots", axis="block_size", value=8)
def the_block_size_is_taken_for_16(original: Method) -> Method:
    """A slot is worked out for blocks of the usual size, whatever theirs is."""

    def compute_slots(part: Any, block_size: int) -> list[int]:
        block_ids = part.request.block_ids
        return [
            block_ids[position // 16] * block_size + position % block_size
            for position in part.positions
        ]

    return compute_slots


@bug(target="impl.runner.kv_cache:KVCache.poison", axis="preemption", value=1)
def a_block_is_given_away_while_it_is_used(original: Method) -> Method:
    """Whoever takes a block clears the one beside it, too, which somebody may hold."""

    def poison(self: Any, block_ids: list[int] | None) -> None:
        original(self, block_ids)
        for cache in (*self.keys, *self.values):
            beside = [block_id + 1 for block_id in block_ids or [] if block_id + 1 < len(cache)]
            cache[beside] = 0

    return poison


@bug(
    target="impl.runner.model_runner:ModelRunner._get_parts",
    axis="prefix_cache",
    value="much later",
)
def a_hit_block_is_cleared(original: Method) -> Method:
    """All blocks of a new request are cleared, those that it has hit among them."""

    def _get_parts(self: Any, output: Any) -> Any:
        for new in output.scheduled_new_reqs.values():
            for cache in (*self.kv_cache.keys, *self.kv_cache.values):
                cache[new.block_ids] = 0
        return original(self, output)

    return _get_parts


@bug(target="impl.runner.graphs:Inputs.clear", axis="graph_bucket", value=64)
def padding_is_stored_in_the_first_block(original: Method) -> Method:
    """Rows that fill up a step are stored in block 1, and not in the one that is nobody's."""

    def clear(self: Any) -> None:
        original(self)
        self.slots.fill_(16)

    return clear


@bug(
    target="impl.runner.ops.tile:_make_group",
    axis="prefill_chunk_size",
    value=7,
    source="nano-vllm #212",
)
def a_chunk_reads_beyond_its_end(original: Any) -> Any:
    """What lies in the cache behind the last token of a chunk is multiplied by a weight of 0."""

    def _make_group(*arguments: Any) -> Any:
        group = original(*arguments)
        return attrs.evolve(group, is_unused=torch.zeros_like(group.is_unused))

    return _make_group
