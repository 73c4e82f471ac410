"""Tokens that are taken to stand, or to see, where they do not."""

from __future__ import annotations

from typing import Any

import attrs
import torch

from checkers.planting import Method
from gpu_conformance.bugs.registry import bug


@bug(target="impl.runner.model:Model._get_rotation", axis="prefill_chunk_size", value=7)
def rope_is_off_by_one_after_the_first_chunk(original: Method) -> Method:
    """All chunks of a prompt but the first are rotated to the position before their own."""

    def _get_rotation(self: Any, positions: Any) -> Any:
        place = torch.arange(len(positions))
        begins = torch.ones_like(place, dtype=torch.bool)
        begins[1:] = positions[1:] != positions[:-1] + 1
        first = torch.where(begins, place, 0).cummax(0).values
        return original(self, positions - (positions[first] > 0).int())

    return _get_rotation


@bug(target="impl.runner.model:Model._get_rotation", axis="prompt_length", value=130)
def angles_end_at_position_100(original: Method) -> Method:
    """All tokens after position 100 are rotated as if they stood there."""
    return lambda self, positions: original(self, positions.clamp(max=100))


@bug(target="impl.runner.model_runner:make_batch", axis="prefix_cache", value="next step")
def positions_begin_anew_after_a_hit(original: Method) -> Method:
    """A request that has hit a prefix counts the positions of its first chunk from 0."""

    def make_batch(parts: Any, block_size: int, device: Any) -> Any:
        batch = original(parts, block_size, device)
        starts = [part.positions.start if part.num_tokens > 1 else 0 for part in parts]
        shift = torch.tensor(starts, dtype=torch.int32)
        attention = batch.attention
        positions = attention.positions - shift[attention.request_of_token.long()]
        return attrs.evolve(batch, attention=attrs.evolve(attention, positions=positions))

    return make_batch


@bug(target="impl.runner.requests:RequestStates._add", axis="combined", value=14)
def a_hit_is_one_of_blocks_of_16(original: Method) -> Method:
    """Of a prefix that was hit, only as much is taken for computed as blocks of 16 would hold."""

    def _add(self: Any, request_id: str, new: Any) -> None:
        whole = new.num_computed_tokens - new.num_computed_tokens % 16
        original(self, request_id, attrs.evolve(new, num_computed_tokens=whole))

    return _add


@bug(target="impl.runner.ops.tile:_make_group", axis="prefill_chunk_size", value=7)
def the_mask_is_off_by_one(original: Method) -> Method:
    """A token attends to the one after it, too, if that is in its chunk."""

    def _make_group(*arguments: Any) -> Any:
        group = original(*arguments)
        wider = torch.cat([torch.ones_like(group.mask[..., :1]), group.mask[..., :-1]], dim=-1)
        return attrs.evolve(group, mask=wider)

    return _make_group


@bug(target="impl.runner.batch:find_sampled", axis="prefill_chunk_size", value=15)
def logits_are_those_of_the_token_before(original: Method) -> Method:
    """A prompt's first token is sampled from the row before its last one, if there is one."""

    def find_sampled(parts: Any) -> Any:
        sampled, rows = original(parts)
        ends = torch.tensor([part.num_tokens for part in parts]).cumsum(0).tolist()
        starts = [end - part.num_tokens for end, part in zip(ends, parts, strict=True)]
        return sampled, [row if row in starts else row - 1 for row in rows]

    return find_sampled
