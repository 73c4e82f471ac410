"""Bugs in what an admission is given for drafts: padding, and slots that are written ahead."""

from __future__ import annotations

from typing import Any

from checkers.mutations.registry import mutation
from checkers.planting import Method


@mutation(
    target="impl.scheduler:FastScheduler._compute_num_padding",
    setting="padding",
    caught_by="grants_are_maximal",
)
def an_admission_is_not_padded(original: Method) -> Method:
    """A request of one token is admitted without draft slots beside others that decode."""

    def _compute_num_padding(self: Any, request: Any, num_computed_tokens: int) -> int:
        return 0

    return _compute_num_padding


@mutation(
    target="impl.scheduler:FastScheduler._compute_num_padding",
    setting="padding",
    caught_by="computed_is_within_tokens",
    is_rare=True,
)
def padding_goes_beyond_the_context(original: Method) -> Method:
    """An admission is padded without a look at max_model_len."""

    def _compute_num_padding(self: Any, request: Any, num_computed_tokens: int) -> int:
        is_decode = request.num_tokens - num_computed_tokens == 1
        is_alone = num_computed_tokens == 0 and not self.is_anybody_granted
        may_pad = is_decode and not is_alone and not self.is_prefill_scheduled
        return int(self.config.num_speculative_tokens) if may_pad else 0

    return _compute_num_padding


@mutation(
    target="impl.scheduler:FastScheduler._may_be_padded",
    setting="padding",
    caught_by="token_budget_is_kept",
)
def padding_is_not_held_against_the_budget(original: Method) -> Method:
    """One token fits the budget, so its padding is taken to fit as well."""

    def _may_be_padded(self: Any, num_padding: int) -> bool:
        return True

    return _may_be_padded


@mutation(
    target="impl.scheduler:FastScheduler._num_tokens_at_admission",
    setting="padding",
    caught_by="blocks_are_given_as_needed",
)
def a_drafter_has_nowhere_to_write_at_first(original: Method) -> Method:
    """An admission is given no slots to be written ahead."""

    def _num_tokens_at_admission(self: Any, request: Any, num_tokens: int) -> int:
        return num_tokens

    return _num_tokens_at_admission
