"""What each step is to compute, worked out beside the runner from the scheduler's words alone.

Entry point: `Ledger`. It tells where each request's KV must lie and which tokens it consists of, so
a runner that loses track of either is seen. The ghost worker of `spec` follows the same steps: if
the schedule itself is wrong, it says so.
"""

from __future__ import annotations

from attrs import frozen

from gpu_conformance.way import Sights, Way
from spec.interface import ModelRunnerOutput, SchedulerOutput
from spec.worker import GhostWorker


@frozen
class Part:
    """What one request has in a step."""

    request_id: str
    start: int
    end: int
    """It computes the positions from `start` to before `end`."""
    num_drafts: int
    """The last of them are drafts."""
    is_sampled: bool
    """Whether nothing known or drafted is left to compute after it, so that a token is sampled."""
    is_admitted: bool
    """Whether its life begins here: new, or back from a preemption."""
    block_ids: tuple[int, ...]
    """Its block table."""

    def count_rejected(self, sampled: list[int]) -> int:
        """How many of its drafts were wrong; nothing is said of them if nothing is sampled."""
        return self.num_drafts + 1 - len(sampled) if sampled else 0


class Ledger:
    """The books of one run."""

    def __init__(self, way: Way) -> None:
        self.salts = {request.request_id: request.cache_key for request in way.requests}
        # Prompts, and all that was sampled, whether the scheduler has heard of it or not.
        self.token_ids = {request.request_id: request.prompt_token_ids for request in way.requests}
        self.ghost = GhostWorker(way.config.block_size)
        self.sights = Sights()
        self.faults: list[str] = []
        """What is wrong with the schedule itself."""

    def begin(self, output: SchedulerOutput) -> list[Part]:
        """Follows a step up to its execution; returns its parts in the order of the step."""
        self.ghost.preempt(output.preempted_req_ids)
        report = self.ghost.execute(output, self.token_ids, self.salts)
        self.faults += [*report.diff, *report.writes, *report.reads]
        if report.diff:
            return []
        parts = [self._make_part(output, name) for name in output.num_scheduled_tokens]
        self._note(output, parts)
        return parts

    def end(self, output: SchedulerOutput, result: ModelRunnerOutput) -> None:
        """Enters what the step has sampled, and takes back drafts that were rejected."""
        for name, sampled in result.sampled_token_ids.items():
            self.token_ids[name] = (*self.token_ids[name], *sampled)
            self.ghost.learn(name, self.token_ids[name])
            drafts = output.scheduled_spec_decode_tokens.get(name, [])
            if drafts and sampled:
                self.ghost.roll_back(name, len(drafts) + 1 - len(sampled))

    def _make_part(self, output: SchedulerOutput, name: str) -> Part:
        end = self.ghost.num_computed_tokens[name]
        num_drafts = len(output.scheduled_spec_decode_tokens.get(name, []))
        cached = output.scheduled_cached_reqs.get(name)
        return Part(
            request_id=name,
            start=end - output.num_scheduled_tokens[name],
            end=end,
            num_drafts=num_drafts,
            is_sampled=end == len(self.token_ids[name]) + num_drafts,
            is_admitted=cached is None or cached.resumed,
            block_ids=tuple(self.ghost.block_tables[name]),
        )

    def _note(self, output: SchedulerOutput, parts: list[Part]) -> None:
        sights = self.sights
        sights.num_steps += 1
        sights.max_num_reqs = max(sights.max_num_reqs, len(parts))
        if parts:
            num_tokens = output.total_num_scheduled_tokens
            sights.shortest_step = min(sights.shortest_step or num_tokens, num_tokens)
        resumed = [each for each in output.scheduled_cached_reqs.values() if each.resumed]
        sights.num_resumptions += len(resumed)
        for part in parts:
            sights.num_partial_chunks += not part.is_sampled
            sights.longest_chunk = max(sights.longest_chunk, part.end - part.start)
            sights.num_hit_tokens += part.start if part.is_admitted else 0
            sights.num_verified_drafts += part.num_drafts
