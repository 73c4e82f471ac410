"""What requests of a step share beside blocks: adapters, and prompts computed in part."""

from __future__ import annotations

from attrs import define, field

from impl.request import Request
from spec.interface import SchedulerConfig


@define
class Slots:
    """What a step has taken of its limits. Each limit is off at 0."""

    config: SchedulerConfig
    loras: set[int] = field(factory=set)
    num_partial_prefills: int = 0
    num_long_partial_prefills: int = 0

    @property
    def is_limited(self) -> bool:
        """Whether any limit is on, so that somebody must count."""
        config = self.config
        limits = (
            config.max_loras,
            config.max_num_partial_prefills,
            config.max_long_partial_prefills,
        )
        return any(limit > 0 for limit in limits)

    def take(self, request: Request, *, is_scheduled: bool) -> None:
        """Counts a running request, whose tokens of this step are computed already."""
        if request.lora_id and (is_scheduled or self.config.idle_loras_count):
            self.loras.add(request.lora_id)
        if request.num_computed_tokens < request.num_prompt_tokens:
            self.num_partial_prefills += 1
            self.num_long_partial_prefills += self._is_long(request)

    def has_slot(self, request: Request) -> bool:
        """Gate: a slot is left for a request's adapter, and one for its prompt if that is long."""
        max_loras, max_long = self.config.max_loras, self.config.max_long_partial_prefills
        is_one_more = request.lora_id != 0 and request.lora_id not in self.loras
        # Drafts that are rejected may wake more adapters than there are slots.
        if max_loras and is_one_more and len(self.loras) >= max_loras:
            return False
        if max_long and self._is_long(request):
            return self.num_long_partial_prefills < max_long
        return True

    def may_be_partial(self, request: Request, num_tokens: int) -> bool:
        """Gate: the whole prompt is computed, or a slot is left for one more that is not."""
        limit = self.config.max_num_partial_prefills
        if limit == 0 or num_tokens >= request.num_prompt_tokens:
            return True
        return self.num_partial_prefills < limit

    def _is_long(self, request: Request) -> bool:
        return request.num_prompt_tokens > self.config.long_prefill_token_threshold
