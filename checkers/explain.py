"""How the specification comes to a decision: its own rules and gates, with the numbers they saw.

Entry points: `explain_last`, and `ExplainedScheduler`, the reference scheduler with its rules,
gates and effects overheard; it decides exactly as its parent does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spec.actions import Action
from spec.block_pool import BlockPool, CacheHit
from spec.interface import (
    EngineCoreOutput,
    ModelRunnerOutput,
    NewRequest,
    PauseState,
    RequestStatus,
    SchedulerConfig,
    SchedulerOutput,
    StreamingUpdate,
)
from spec.model import Model
from spec.remote_kv import num_blocks_of_prefills
from spec.request import Request
from spec.scheduler import ReferenceScheduler


def explain_last(config: SchedulerConfig, actions: Sequence[Action]) -> tuple[str, ...]:
    """How the specification decides in the last of `actions`, a sentence per rule or effect."""
    scheduler = ExplainedScheduler(config)
    model = Model(None, scheduler)
    for action in actions:
        model.do(action)
    return tuple(scheduler.log)


class ExplainedScheduler(ReferenceScheduler):
    """The reference scheduler; `log` tells what the last call did, a sentence per rule or gate."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.log: list[str] = []
        super().__init__(config)

    # ---- the calls: each begins a new log --------------------------------------------------------

    def add_request(self, new: NewRequest) -> EngineCoreOutput | None:
        """As the parent."""
        self.log = []
        refusal = super().add_request(new)
        if refusal is not None:
            self._note(f"refuse {new.request_id}: it may outgrow the pool")
        return refusal

    def schedule(self) -> SchedulerOutput:
        """As the parent."""
        self.log = []
        return super().schedule()

    def update_from_output(
        self, output: SchedulerOutput, result: ModelRunnerOutput
    ) -> dict[int, list[EngineCoreOutput]]:
        """As the parent."""
        self.log = []
        return super().update_from_output(output, result)

    def finish_requests(self, request_ids: Iterable[str], finished_status: RequestStatus) -> None:
        """As the parent."""
        self.log = []
        super().finish_requests(request_ids, finished_status)

    def set_pause_state(self, pause_state: PauseState) -> None:
        """As the parent."""
        self.log = []
        super().set_pause_state(pause_state)

    def grammar_ready(self, request_id: str) -> None:
        """As the parent."""
        self.log = []
        super().grammar_ready(request_id)

    def finish_recving(self, request_id: str, num_valid_tokens: int) -> None:
        """As the parent."""
        self.log = []
        super().finish_recving(request_id, num_valid_tokens)

    def streaming_update(self, request_id: str, update: StreamingUpdate | None) -> None:
        """As the parent."""
        self.log = []
        super().streaming_update(request_id, update)

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """As the parent."""
        self.log = []
        is_reset = super().reset_prefix_cache(reset_running_requests)
        self._note("forget what was published" if is_reset else "blocks are held: forget nothing")
        return is_reset

    # ---- rules, gates and effects ----------------------------------------------------------------

    def _compute_num_new_tokens(self, request: Request) -> int:
        num_new_tokens = super()._compute_num_new_tokens(request)
        num_known = request.num_tokens_with_spec + request.num_output_placeholders
        gap = num_known - request.num_computed_tokens
        self._note(
            f"pass 1: {request.request_id} has a gap of {gap} and may get {num_new_tokens} tokens "
            f"({self._budgets()}, threshold {self.long_prefill_token_threshold})"
        )
        return num_new_tokens

    def _budgets(self) -> str:
        """What is left of the budgets; without draft slots the input budget never binds first."""
        slots = self.config.num_draft_slots
        beside = f", input budget {self.input_budget} less {slots} for draft slots" if slots else ""
        return f"token budget {self.token_budget}{beside}"

    def _schedule_drafts(self, request: Request, num_tokens: int) -> None:
        num_drafts = request.num_draft_tokens
        super()._schedule_drafts(request, num_tokens)
        num_scheduled = self._num_scheduled_drafts(request)
        self._note(f"verify {num_scheduled} of the {num_drafts} drafts of {request.request_id}")

    def _roll_back(self, request: Request, num_draft_tokens: int, num_sampled_tokens: int) -> None:
        num_computed_tokens = request.num_computed_tokens
        super()._roll_back(request, num_draft_tokens, num_sampled_tokens)
        num_rejected = num_computed_tokens - request.num_computed_tokens
        self._note(
            f"roll back {num_rejected} of the {num_draft_tokens} drafts of {request.request_id}"
        )

    def _choose_victim(self) -> Request:
        victim = super()._choose_victim()
        self._note(
            f"preempt {victim.request_id}: it is served last, and "
            f"{self.block_pool.num_free_blocks} free blocks are too few"
        )
        return victim

    def _preempt_last_running(self) -> bool:
        if self.running:
            name = self.running[-1].request_id
            self._note(f"preempt {name}: whoever runs gives way to the reset")
        return super()._preempt_last_running()

    def _take_back(self, victim: Request) -> None:
        if victim.request_id in self.output.num_scheduled_tokens:
            num_tokens = self.output.num_scheduled_tokens[victim.request_id]
            self._note(
                f"take back the {num_tokens} tokens that this step granted {victim.request_id}"
            )
        super()._take_back(victim)

    def _may_admit(self) -> bool:
        return self._gate(
            "no pause, budget left, nobody preempted",
            super()._may_admit(),
            f"{self.pause_state}, {self._budgets()}, preempted {self.output.preempted_req_ids}",
        )

    def _has_seat(self) -> bool:
        return self._gate(
            "max_num_seqs",
            super()._has_seat(),
            f"{len(self.running)} of {self.config.max_num_seqs} run",
        )

    def _is_ready(self, request: Request) -> bool:
        return self._gate(
            f"{request.request_id} is ready",
            super()._is_ready(request),
            f"{RequestStatus(request.status).name}, "
            f"{request.num_stale_output_tokens} tokens of voided steps are in flight",
        )

    def _has_slot(self, request: Request) -> bool:
        return self._gate(
            f"a slot for {request.request_id}",
            super()._has_slot(request),
            f"adapter {request.lora_id}, {request.num_prompt_tokens} prompt tokens",
        )

    def _may_be_partial(self, request: Request, num_tokens: int) -> bool:
        return self._gate(
            "max_num_partial_prefills, or the whole prompt is computed",
            super()._may_be_partial(request, num_tokens),
            f"{num_tokens} of {request.num_prompt_tokens} prompt tokens of {request.request_id}",
        )

    def _may_be_cut(self, num_new_tokens: int) -> bool:
        return self._gate(
            "chunked prefill, or the whole prompt fits the budget",
            super()._may_be_cut(num_new_tokens),
            f"{num_new_tokens} tokens, {self._budgets()}",
        )

    def _has_room_for(self, request: Request, num_tokens: int, hit: CacheHit) -> bool:
        num_slots = self._num_tokens_to_hold(request, num_tokens)
        num_slots = min(num_slots, self.config.max_model_len)
        num_blocks = self._num_blocks_to_take(request, num_slots, hit)
        return self._gate(
            f"room for {request.request_id}",
            super()._has_room_for(request, num_tokens, hit),
            f"{num_tokens} of {request.num_tokens} tokens beyond a hit of {hit.num_blocks} blocks "
            f"take {num_blocks}{self._shares(request, hit)}",
        )

    def _has_room_to_load(self, request: Request, end: int, hit: CacheHit) -> bool:
        num_prefill_blocks = num_blocks_of_prefills(self.config, self.requests)
        return self._gate(
            f"room to load {request.request_id}",
            super()._has_room_to_load(request, end, hit),
            f"{end} tokens beyond a hit of {hit.num_blocks} blocks take "
            f"{self._num_blocks_to_take(request, end, hit)} beside {num_prefill_blocks} for "
            f"prefills{self._shares(request, hit)}",
        )

    def _shares(self, request: Request, hit: CacheHit) -> str:
        """What else a gate of memory asks for, where it does, and what there is."""
        config, shares = self.config, ""
        if config.scheduler_reserve_full_isl:
            num_tokens = self._num_tokens_of_sequence(request)
            num_blocks = self._num_blocks_to_take(request, num_tokens, hit)
            shares += f", the whole sequence {num_blocks}"
        if config.reserve_admitted_prefills:
            shares += f" beside {self._num_reserved_blocks()} reserved for who runs"
        if self.running and config.num_watermark_blocks:
            shares += f", a watermark of {config.num_watermark_blocks} beside it"
        return f"{shares}, {self.block_pool.num_free_blocks} are free"

    def _begin_load(self, request: Request, end: int, hit: CacheHit) -> None:
        start = hit.num_blocks * self.config.block_size
        self._note(f"pass 2: load tokens {start} to {end} of {request.request_id}, which waits")
        super()._begin_load(request, end, hit)

    def _admit(
        self, request: Request, num_computed_tokens: int, num_new_tokens: int, hit: CacheHit
    ) -> None:
        self._note(
            f"pass 2: admit {request.request_id} at token {num_computed_tokens} "
            f"with {num_new_tokens} new tokens"
        )
        super()._admit(request, num_computed_tokens, num_new_tokens, hit)

    def _publish(self, request: Request, num_tokens: int) -> None:
        num_published = self._num_published_blocks()
        super()._publish(request, num_tokens)
        if self._num_published_blocks() > num_published:
            num_tokens = min(num_tokens, request.num_tokens)
            self._note(f"publish the full blocks of {request.request_id} up to token {num_tokens}")

    def _num_published_blocks(self) -> int:
        pool = self.block_pool
        return len(pool.block_hash) if isinstance(pool, BlockPool) else 0

    def _finish(self, request: Request, status: int) -> None:
        self._note(f"finish {request.request_id} as {RequestStatus(status).name}, free its blocks")
        super()._finish(request, status)

    def _gate(self, name: str, is_open: bool, numbers: str) -> bool:
        if not is_open:
            self._note(f"pass 2: gate “{name}” refuses ({numbers})")
        return is_open

    def _note(self, sentence: str) -> None:
        self.log.append(sentence)
