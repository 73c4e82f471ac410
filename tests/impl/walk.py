"""Random walks of our engine beside the reference scheduler: the same actions, the same answers."""

from __future__ import annotations

from random import Random
from typing import Any

from attrs import define, field

from impl.scheduler import FastScheduler
from spec.interface import (
    NewRequest,
    RepetitionDetection,
    RequestStatus,
    SchedulerConfig,
)
from spec.model import (
    Action,
    AddRequest,
    FinishRequests,
    Model,
    Outcome,
    Schedule,
    UpdateFromOutput,
)
from spec.scheduler import ReferenceScheduler

EOS = 2
MAX_LIVE_REQUESTS = 6


def make_config(rng: Random, **fixed: Any) -> SchedulerConfig:
    """Draws a small configuration, tight enough that requests get in each other's way; `fixed` fields are given."""
    max_model_len = fixed.get("max_model_len", rng.randint(3, 24))
    block_size = fixed.get("block_size", rng.randint(1, 4))
    chunked = fixed.get("enable_chunked_prefill", rng.random() < 0.85)
    budget = rng.randint(1, 20) if chunked else rng.randint(max_model_len - 1, 40)
    reserve_full = fixed.get("scheduler_reserve_full_isl", rng.random() < 0.7)
    fields: dict[str, Any] = {
        "max_num_batched_tokens": budget + rng.choice((0, 0, 3)),
        "max_num_scheduled_tokens": budget,
        "max_num_seqs": rng.randint(1, 5),
        "max_model_len": max_model_len,
        "block_size": block_size,
        # From a pool smaller than one request to one that is rarely exhausted.
        "num_blocks": rng.randint(1, 3 * max_model_len // block_size + 1),
        "long_prefill_token_threshold": rng.choice((0, 0, 1, 3, 5)),
        "policy": rng.choice(("fcfs", "priority")),
        "enable_prefix_caching": rng.random() < 0.6,
        "async_scheduling": rng.random() < 0.5,
        "enable_chunked_prefill": chunked,
        "scheduler_reserve_full_isl": reserve_full,
        "reserve_admitted_prefills": reserve_full and rng.random() < 0.3,
        "num_watermark_blocks": rng.choice((0, 0, 0, 1, 2)),
        "publish_at_grant": rng.random() < 0.2,
        "same_step_prefix_hits": rng.random() < 0.7,
        "threshold_spares_lone_request": rng.random() < 0.7,
        "uncached_blocks_first": rng.random() < 0.7,
        "continue_after_self_preemption": rng.random() < 0.7,
        "cursor_follows_victim": rng.choice(("always", "scheduled", "never")),
        "wait_for_stale_output": rng.random() < 0.6,
        "deliver_stale_output": rng.random() < 0.7,
        "stop_at_max_tokens_in_flight": rng.random() < 0.7,
        "stop_order": rng.choice(("stop_length", "min_stop_length", "length_stop")),
    }
    return SchedulerConfig(**{**fields, **fixed})


@define
class Walk:
    """Both schedulers, each in a model of its own, and the choices of the environment."""

    config: SchedulerConfig
    rng: Random
    max_in_flight: int
    fast: Model = field(init=False)
    spec: Model = field(init=False)
    actions: list[Action] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.fast = Model(None, FastScheduler(self.config))
        self.spec = Model(None, ReferenceScheduler(self.config))

    def take(self, num_actions: int) -> None:
        """Does so many random actions; raises AssertionError at the first difference."""
        for _ in range(num_actions):
            self.do(self.choose())

    def do(self, action: Action) -> Outcome:
        """Does an action on both sides and compares all that can be seen, order included."""
        self.actions.append(action)
        want, got = self.spec.do(action), self.fast.do(action)
        assert _show(want) == _show(got), self._tell()
        assert self.spec.scheduler.observe() == self.fast.scheduler.observe(), self._tell()
        return got

    def choose(self) -> Action:
        """Draws what happens next."""
        draw = self.rng.random()
        live = list(self.spec.live)
        if draw < 0.2 and len(live) < MAX_LIVE_REQUESTS:
            return AddRequest(self._make_request())
        if draw < 0.25 and live:
            names = tuple(self.rng.sample(live, self.rng.randint(1, min(2, len(live)))))
            status = self.rng.choice(
                (RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_STOPPED)
            )
            return FinishRequests((*names, "unknown"), status)
        num_in_flight = len(self.spec.in_flight)
        if num_in_flight < self.max_in_flight and (num_in_flight == 0 or draw < 0.65):
            return Schedule()
        return self._make_update()

    def _make_update(self) -> Action:
        samplers = self.spec.live_samplers()
        return UpdateFromOutput({name: [self.rng.choice((0, 0, 0, 1, EOS))] for name in samplers})

    def _make_request(self) -> NewRequest:
        rng = self.rng
        detection = RepetitionDetection(rng.randint(0, 3), rng.randint(0, 2), rng.randint(1, 3))
        return NewRequest(
            # Names sort otherwise than arrivals.
            request_id=f"{rng.choice('abc')}{self.spec.num_arrivals}",
            prompt_token_ids=self._make_prompt(),
            max_tokens=rng.randint(1, 12),
            min_tokens=rng.choice((0, 0, 3)),
            eos_token_id=rng.choice((None, None, EOS)),
            stop_token_ids=rng.choice(((), (), (1, 7))),
            repetition_detection=rng.choice((None, None, detection)),
            priority=rng.randint(0, 2),
            # Two arrivals may share a time.
            arrival_time=float(self.spec.num_arrivals // 2),
            client_index=rng.randint(0, 1),
            cache_salt=rng.choice((None, None, None, "salt")),
        )

    def _make_prompt(self) -> tuple[int, ...]:
        """Draws a prompt that often begins like another request's text."""
        rng = self.rng
        texts = [request.token_ids for request in self.spec.live.values()]
        head = rng.choice(texts) if texts and rng.random() < 0.5 else (0,) * rng.randint(0, 12)
        tail = tuple(rng.randint(0, 1) for _ in range(rng.randint(1, 6)))
        return (*head, *tail)[: self.config.max_model_len - 1]

    def _tell(self) -> str:
        lines = [str(self.config), *map(str, self.actions)]
        return "\n".join(lines)


def _show(outcome: Outcome) -> tuple[object, ...]:
    """All that was answered; dicts are equal whatever their order, so their keys are shown as well."""
    output = outcome.output
    orders = output and (
        list(output.num_scheduled_tokens),
        list(output.scheduled_new_reqs),
        list(output.scheduled_cached_reqs),
    )
    return output, orders, outcome.results, list(outcome.results or {})
