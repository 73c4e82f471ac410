"""Requests whose state the runner loses track of."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
import torch

from checkers.planting import Method
from gpu_conformance.bugs.registry import bug


@bug(target="impl.runner.batch:Part.samples", axis="prefill_chunk_size", value=7)
def a_chunk_that_is_not_the_last_samples_a_token(original: Any) -> Any:
    """A token is sampled after each chunk of a prompt."""
    return property(lambda part: part.num_tokens > 0)


@bug(
    target="impl.runner.model_runner:ModelRunner._get_parts",
    axis="preemption",
    value=0,
    source="nano-vllm #145",
)
def a_resumed_request_computes_its_last_token_only(original: Method) -> Method:
    """A request that comes back from a preemption goes on as if its blocks still held its KV."""

    def _get_parts(self: Any, output: Any) -> Any:
        parts = original(self, output)
        for place, part in enumerate(parts):
            cached = output.scheduled_cached_reqs.get(part.request.request_id)
            if cached is not None and cached.resumed and part.samples:
                part.request.num_computed_tokens += part.num_tokens - 1
                parts[place] = attrs.evolve(part, num_tokens=1)
        return parts

    return _get_parts


@bug(target="impl.runner.requests:RequestStates._resume", axis="preemption", value=1)
def a_resumed_request_keeps_its_old_blocks(original: Method) -> Method:
    """A request that comes back from a preemption has its old blocks in its table."""

    def _resume(self: Any, request: Any, cached: Any) -> None:
        old = list(request.block_ids)
        original(self, request, cached)
        request.block_ids = [*old, *request.block_ids[len(old) :]][: len(request.block_ids)]

    return _resume


@bug(target="impl.runner.requests:RequestStates._resume", axis="combined", value=10)
def a_shorter_table_ends_as_the_old_one_went_on(original: Method) -> Method:
    """Of a table shorter than before the preemption, the last entry is not overwritten."""

    def _resume(self: Any, request: Any, cached: Any) -> None:
        old = list(request.block_ids)
        original(self, request, cached)
        if 2 <= len(request.block_ids) < len(old):
            request.block_ids[-1] = old[len(request.block_ids) - 1]

    return _resume


@bug(target="impl.runner.requests:RequestStates._resume", axis="combined", value=5)
def a_shorter_table_keeps_the_rest_of_the_old_one(original: Method) -> Method:
    """A table shorter than before the preemption has old entries behind it, and grows there."""

    def _resume(self: Any, request: Any, cached: Any) -> None:
        old = list(request.block_ids)
        original(self, request, cached)
        if len(request.block_ids) >= 2:
            request.block_ids += old[len(request.block_ids) :]

    return _resume


@bug(target="impl.runner.requests:RequestStates._resume", axis="combined", value=6)
def a_table_of_the_old_length_keeps_its_end(original: Method) -> Method:
    """A table just as long as before the preemption has its last entry from then."""

    def _resume(self: Any, request: Any, cached: Any) -> None:
        old = list(request.block_ids)
        original(self, request, cached)
        if 2 <= len(request.block_ids) == len(old):
            request.block_ids[-1] = old[-1]

    return _resume


@bug(
    target="impl.runner.requests:RequestStates._resume",
    axis="preemption",
    value=0,
    source="vllm-ascend #11334, vLLM #28787",
)
def a_resumed_request_forgets_its_output(original: Method) -> Method:
    """The tokens that a request had sampled before its preemption are computed as others."""

    def _resume(self: Any, request: Any, cached: Any) -> None:
        original(self, request, cached)
        if len(request.token_ids) > 1:
            request.token_ids[-1] = 0

    return _resume


@bug(
    target="impl.runner.model_runner:ModelRunner._settle",
    axis="async_depth",
    value=2,
    source="sglang-jax #1487",
)
def tokens_of_two_requests_are_swapped(original: Method) -> Method:
    """What the first two requests of a step have sampled is kept for each other's next step."""

    def _settle(self: Any, parts: Any, sampled: dict[str, list[int]]) -> None:
        names = [name for name, tokens in sampled.items() if tokens]
        swapped = dict(sampled)
        if len(names) > 1:
            one, other = names[:2]
            swapped[one], swapped[other] = sampled[other], sampled[one]
        original(self, parts, swapped)

    return _settle


@bug(target="impl.runner.requests:RequestStates._go_on", axis="combined", value=2)
def the_scheduler_is_believed_where_it_cannot_know(original: Method) -> Method:
    """A step that was planned before drafts were rejected begins where it was planned to."""

    def _go_on(self: Any, request: Any, cached: Any) -> None:
        original(self, request, cached)
        num_tokens = request.num_computed_tokens
        ahead = cached.num_computed_tokens - num_tokens
        request.token_ids[num_tokens:num_tokens] = request.token_ids[num_tokens - 1 :][:1] * ahead
        request.num_computed_tokens += ahead

    return _go_on


@bug(
    target="impl.runner.requests:RequestStates._forget",
    axis="request_id",
    value="in the same step",
)
def who_has_ended_is_forgotten_a_step_late(original: Method) -> Method:
    """A name is given up one step late, when somebody else may have it."""

    def _forget(self: Any, request_ids: Any) -> None:
        late = vars(self).setdefault("late", [])
        original(self, late)
        late[:] = request_ids

    return _forget


@bug(target="impl.runner.requests:RequestStates._add", axis="request_id", value="in the next step")
def a_name_brings_back_its_old_blocks(original: Method) -> Method:
    """Block tables are kept by name, and a new request under it has those of the one before."""

    def _add(self: Any, request_id: str, new: Any) -> None:
        original(self, request_id, new)
        tables = vars(self).setdefault("tables", {})
        block_ids = self.requests[request_id].block_ids
        if new.num_computed_tokens == 0:
            block_ids[:1] = tables.setdefault(request_id, block_ids[:1])

    return _add


@bug(target="impl.runner.model_runner:ModelRunner._sample", axis="draft_tokens", value=3)
def a_rejected_draft_is_passed_over(original: Method) -> Method:
    """After a draft that is wrong, the drafts behind it are verified all the same."""

    def _sample(self: Any, request: Any, logits: Any) -> list[int]:
        rows = range(len(logits))
        if len(logits) == 1:
            tokens: list[int] = original(self, request, logits)
            return tokens
        return [
            original(
                self,
                attrs.evolve(request, draft_token_ids=[], position=request.position + row),
                logits[row : row + 1],
            )[0]
            for row in rows
        ]

    return _sample


@bug(target="impl.runner.batch:get_input_token_ids", axis="resumed_chunk_size", value=1)
def one_token_of_an_output_is_taken_for_the_last(original: Method) -> Method:
    """A chunk of one token behind the prompt is taken for a decode, and computes the last token."""
    prompts: dict[int, tuple[Any, int]] = {}

    def get_input_token_ids(part: Any) -> list[int]:
        request = part.request
        # Kept as well, so that no other request comes by its id.
        _, num_prompt_tokens = prompts.setdefault(id(request), (request, len(request.token_ids)))
        if part.num_tokens == 1 and part.positions.start >= num_prompt_tokens:
            last: list[int] = request.token_ids[-1:]
            return last
        token_ids: list[int] = original(part)
        return token_ids

    return get_input_token_ids


@bug(
    target="impl.runner.model_runner:ModelRunner._sample",
    axis="request_id",
    value="after the end",
)
def noise_is_counted_on_under_a_name(original: Method) -> Method:
    """The source of noise is kept by name, so that a new request goes on where the old one was."""

    def _sample(self: Any, request: Any, logits: Any) -> Any:
        drawn = vars(self).setdefault("drawn", Counter())
        token_ids = original(
            self, attrs.evolve(request, position=drawn[request.request_id]), logits
        )
        drawn[request.request_id] += len(token_ids)
        return token_ids

    return _sample


@bug(target="impl.runner.sampling:_make_noise", axis="batch_order", value=2)
def noise_comes_from_one_source_for_all(original: Method) -> Method:
    """Whoever samples first takes the first numbers of a generator that all requests share."""
    generator = torch.Generator().manual_seed(0)

    def _make_noise(num_tokens: int, seed: int, request_id: str, position: int) -> Any:
        return -(-torch.rand(num_tokens, generator=generator, dtype=torch.float64).log()).log()

    return _make_noise
