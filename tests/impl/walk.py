"""Random walks of two schedulers side by side: the same actions, and so the same answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from random import Random
from typing import Any, get_args

from attrs import Factory, define, field

from checkers.mixed import Mix, draw_config
from impl.scheduler import FastScheduler
from spec.actions import (
    Action,
    AddRequest,
    FinishRequests,
    GrammarReady,
    ResetPrefixCache,
    Schedule,
    SetPauseState,
    StreamingChunk,
    UpdateFromOutput,
)
from spec.dialects import DIALECTS
from spec.interface import (
    ConfigError,
    NewRequest,
    PauseState,
    RepetitionDetection,
    RequestStatus,
    Scheduler,
    SchedulerConfig,
    StreamingUpdate,
)
from spec.model import Model
from spec.scheduler import ReferenceScheduler
from spec.sessions import find_turns, may_take
from spec.transition import Outcome

EOS = 2
TOKENS = (0, 0, 0, 0, 0, 3, 3, 1, EOS)
MAX_LIVE_REQUESTS = 6

Make = Callable[[SchedulerConfig], Scheduler]


def make_config(rng: Random, **fixed: Any) -> SchedulerConfig:
    """Draws a small config in which requests get in each other's way; `fixed` fields are given.

    Faults of releases are drawn, too: our engine has them like the specification.
    """
    while True:
        faults = {name: rng.random() < 0.2 for name in DIALECTS["vllm-0.33.0-as-released"]}
        with suppress(ConfigError):
            return draw_config(Mix(rng), **{**faults, **fixed})


@define
class Walk:
    """Two schedulers, each in a model of its own, and an environment that chooses for both."""

    config: SchedulerConfig
    rng: Random
    max_in_flight: int
    """Steps in flight at once."""
    make_reference: Make = ReferenceScheduler
    make_checked: Make = FastScheduler
    reference: Model = field(
        init=False,
        default=Factory(lambda self: Model(None, self.make_reference(self.config)), True),
    )
    checked: Model = field(
        init=False,
        default=Factory(lambda self: Model(None, self.make_checked(self.config)), True),
    )
    actions: list[Action] = field(init=False, factory=list)
    reached: Counter[str] = field(init=False, factory=Counter)
    """What has happened, and how often."""

    @classmethod
    def from_seed(cls, seed: int, **fixed: Any) -> Walk:
        """Draws a config, and how many steps may be in flight."""
        rng = Random(seed)
        config = make_config(rng, **fixed)
        return cls(config, rng, rng.choice((1, 2, 3, 3)) if config.async_scheduling else 1)

    def take(self, num_actions: int) -> None:
        """Does so many random actions; raises AssertionError at the first difference."""
        for _ in range(num_actions):
            self.do(self.choose())

    def do(self, action: Action) -> Outcome:
        """Does an action on both sides and compares all that can be seen, order included."""
        self.actions.append(action)
        expected, actual = self.reference.do(action), self.checked.do(action)
        assert show(expected) == show(actual), self._tell()
        expected_state = self.reference.scheduler.observe()
        actual_state = self.checked.scheduler.observe()
        assert expected_state == actual_state, self._tell()
        self._note(action, actual)
        return actual

    def fork(self) -> Walk:
        """Copies the walk, schedulers included; the copy goes its own way."""
        return deepcopy(self)

    # ---- the environment -------------------------------------------------------------------------

    def choose(self) -> Action:
        """Draws what happens next."""
        draw = self.rng.random()
        live = list(self.reference.live)
        if len(live) < 2 or (draw < 0.25 and len(live) < MAX_LIVE_REQUESTS):
            return AddRequest(self._make_request())
        if 0.25 <= draw < 0.27:
            return self._make_end(live)
        if 0.27 <= draw < 0.3 or (draw > 0.8 and self.reference.is_waited_for):
            return self._make_control()
        num_in_flight = len(self.reference.in_flight)
        if num_in_flight < self.max_in_flight and (num_in_flight == 0 or draw < 0.75):
            return Schedule()
        sampled = {name: self._make_row(name) for name in self.reference.live_samplers()}
        return UpdateFromOutput(sampled, self._make_drafts())

    def _make_row(self, request_id: str) -> list[int]:
        """Draws how many drafts are accepted, and what follows; a void row may be empty."""
        oldest = self.reference.in_flight[0]
        drafts = oldest.drafts_of(request_id)
        if drafts and request_id in oldest.voided and self.rng.random() < 0.3:
            return []
        accepted = drafts[: self.rng.randint(0, len(drafts))]
        return [*[max(draft, 0) for draft in accepted], self.rng.choice(TOKENS)]

    def _make_drafts(self) -> dict[str, list[int]]:
        """Draws drafts for some of the oldest step, dead ones and unfinished prompts too."""
        if self.config.async_scheduling or self.config.num_speculative_tokens == 0:
            return {}
        scheduled = self.reference.in_flight[0].output.num_scheduled_tokens
        most = self.config.num_speculative_tokens
        return {
            name: self.rng.choices(TOKENS, k=self.rng.randint(1, most))
            for name in scheduled
            if self.rng.random() < 0.7
        }

    def _make_end(self, live: list[str]) -> Action:
        names = self.rng.sample(live, self.rng.randint(1, min(2, len(live))))
        statuses = (RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_STOPPED)
        return FinishRequests((*names, "unknown"), self.rng.choice(statuses))

    def _make_control(self) -> Action:
        """Draws something that the engine is told; pauses end, and grammars get compiled."""
        compiled: list[Action] = [*self.reference.grammars(), *self._make_chunks()]
        if self.reference.pause_state != "unpaused":
            compiled.append(SetPauseState("unpaused"))
        others = (
            SetPauseState(self.rng.choice(get_args(PauseState))),
            ResetPrefixCache(self.rng.random() < 0.5),
        )
        return self.rng.choice(compiled or others)

    def _make_chunks(self) -> Iterator[Action]:
        """Draws a chunk, or the end, for each resumable request."""
        rng, time = self.rng, float(self.reference.num_arrivals // 2)
        for name, live in self.reference.live.items():
            if live.is_open:
                tokens = tuple(rng.choices(TOKENS, k=rng.randint(1, 3)))
                update = StreamingUpdate(
                    prompt_token_ids=tokens, max_tokens=rng.choice((1, 5)), arrival_time=time
                )
                fits = may_take(live, update, self.config.max_model_len - 1)
                yield StreamingChunk(name, update if fits and rng.random() < 0.8 else None)

    def _make_request(self) -> NewRequest:
        rng, number = self.rng, self.reference.num_arrivals
        detection = RepetitionDetection(rng.randint(0, 3), rng.randint(0, 2), rng.randint(1, 3))
        prompt_token_ids = self._make_prompt()
        # More than may ever be reached, in older dialects, lets a request run for ever.
        min_tokens = rng.choice((0,) * 8 + (1, 2, 6))
        if self.config.num_speculative_tokens > 0:
            # Drafts would take it beyond the longest context, and no pool need hold that.
            min_tokens = min(min_tokens, self.config.max_model_len - len(prompt_token_ids))
        return NewRequest(
            # Names sort otherwise than arrivals.
            request_id=f"{rng.choice('abc')}{number}",
            prompt_token_ids=prompt_token_ids,
            max_tokens=rng.choice((1, 6, 12, 24)),
            min_tokens=min_tokens,
            eos_token_id=rng.choice((None, None, None, EOS)),
            stop_token_ids=rng.choice(((), (), (), (1, 7))),
            repetition_detection=rng.choice((None, None, detection)),
            priority=rng.randint(0, 2),
            # Two arrivals may share a time.
            arrival_time=float(number // 2),
            client_index=rng.randint(0, 1),
            cache_salt=rng.choice((None, None, None, "salt")),
            lora_id=rng.choice((0, 0, 0, 1, 2)),
            structured_output=rng.random() < 0.1,
            resumable=self.config.wait_for_stale_output and rng.random() < 0.2,
        )

    def _make_prompt(self) -> tuple[int, ...]:
        """Draws a prompt that often begins like another request's text."""
        rng = self.rng
        texts = [request.token_ids for request in self.reference.live.values()]
        head = rng.choice(texts) if texts and rng.random() < 0.5 else (0,) * rng.randint(0, 6)
        tail = tuple(rng.randint(0, 1) for _ in range(rng.randint(1, 4)))
        return (*head, *tail)[: self.config.max_model_len - 1]

    # ---- what is said of it ----------------------------------------------------------------------

    def _note(self, action: Action, outcome: Outcome) -> None:
        output = outcome.output
        if output is not None:
            new, cached = output.scheduled_new_reqs, output.scheduled_cached_reqs
            self.reached["preemption"] += len(output.preempted_req_ids)
            self.reached["prefix hit"] += sum(data.num_computed_tokens > 0 for data in new.values())
            self.reached["resumption"] += sum(data.resumed for data in cached.values())
            self.reached["draft"] += len(output.scheduled_spec_decode_tokens)
            self.reached["decode"] += sum(not data.new_block_ids for data in cached.values())
        for outputs in (outcome.results or {}).values():
            self.reached.update(sent.finish_reason for sent in outputs if sent.finish_reason)
        self.reached["reset"] += outcome.is_reset is True
        self.reached["turn"] += len(find_turns(self.reference.live, outcome.results or {}))
        self.reached["pause"] += self.reference.pause_state != "unpaused"
        self.reached["grammar"] += isinstance(action, GrammarReady)
        if isinstance(action, FinishRequests) and self.reference.in_flight:
            self.reached["abort in flight"] += 1
        self.reached["stale output"] += any(step.voided for step in self.reference.in_flight)

    def _tell(self) -> str:
        return "\n".join(map(str, (self.config, *self.actions)))


def show(outcome: Outcome) -> tuple[object, ...]:
    """All that was answered, the order of keys included, which the equality of dicts ignores."""
    output = outcome.output
    orders = output and (
        list(output.num_scheduled_tokens),
        list(output.scheduled_new_reqs),
        list(output.scheduled_cached_reqs),
    )
    return output, orders, outcome.results, list(outcome.results or {}), outcome.is_reset
