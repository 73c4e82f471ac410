"""Whether a written-down run can have happened at all, whatever the engine.

Entry point: `expect_possible`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from checkers.errors import HarnessError
from checkers.table import Step
from checkers.trial import Rules, make_possible
from spec.actions import ACTION_NAMES, AddRequest, Schedule, UpdateFromOutput
from spec.environment import Environment
from spec.interface import (
    EngineCoreOutput,
    ModelRunnerOutput,
    NewRequest,
    Observation,
    PauseState,
    RequestStatus,
    SchedulerOutput,
    StreamingUpdate,
)
from spec.model import Model


def expect_possible(rules: Rules, steps: Sequence[Step]) -> None:
    """Raises `HarnessError` or `ConfigError` if a step cannot follow on those before it."""
    requests = [step.action.request for step in steps if isinstance(step.action, AddRequest)]
    if requests:
        Environment(shapes=tuple(requests), max_live_requests=1).check_fits(rules.config)
    script = _Script()
    model = Model(None, script)
    for index, step in enumerate(steps):
        if make_possible(model, step.action, rules) != step.action:
            name = ACTION_NAMES[type(step.action)]
            raise HarnessError(f"steps[{index}]: {name} cannot happen there; restore the file")
        if not _is_answered(step):
            if index + 1 < len(steps):
                raise HarnessError(
                    f"steps[{index}]: an answer is missing, which only the last step may lack; "
                    "restore the file"
                )
            return
        script.step = step
        model.do(step.action)


def _is_answered(step: Step) -> bool:
    if isinstance(step.action, Schedule) and step.output is None:
        return False
    if isinstance(step.action, UpdateFromOutput) and step.results is None:
        return False
    return step.observation is not None


class _Script:
    """A scheduler that answers what is written down."""

    step: Step

    def add_request(self, new: NewRequest) -> EngineCoreOutput | None:
        sent = [output for outputs in (self.step.results or {}).values() for output in outputs]
        return sent[0] if sent else None

    def schedule(self) -> SchedulerOutput:
        assert self.step.output is not None, "the step is answered"
        return self.step.output

    def update_from_output(
        self, output: SchedulerOutput, result: ModelRunnerOutput
    ) -> dict[int, list[EngineCoreOutput]]:
        assert self.step.results is not None, "the step is answered"
        return self.step.results

    def finish_requests(self, request_ids: Iterable[str], finished_status: RequestStatus) -> None:
        pass

    def update_draft_token_ids(self, draft_token_ids: dict[str, list[int]]) -> None:
        pass

    def set_pause_state(self, pause_state: PauseState) -> None:
        pass

    def grammar_ready(self, request_id: str) -> None:
        pass

    def finish_recving(self, request_id: str, num_valid_tokens: int) -> None:
        pass

    def streaming_update(self, request_id: str, update: StreamingUpdate | None) -> None:
        pass

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        return True  # Who asks does not look at the answer.

    def observe(self) -> Observation:
        assert self.step.observation is not None, "the step is answered"
        return self.step.observation
