"""What each step is to compute, worked out beside the runner from the scheduler's words alone.

Entry point: `Ledger`. It tells where each request's KV must lie and which tokens it consists of, so
a runner that loses track of either is seen. The ghost worker of `spec` follows the same steps: if
the schedule itself is wrong, it says so.
"""

from __future__ import annotations

from collections import defaultdict

from attrs import frozen

from gpu_conformance.way import Sights, Way
from spec.interface import CachedRequestData, ModelRunnerOutput, SchedulerOutput
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
    is_new: bool = False
    """Whether it is the first of its request; under its name there may have been another."""

    def count_rejected(self, sampled: list[int]) -> int:
        """How many of its drafts were wrong; nothing is said of them if nothing is sampled."""
        return self.num_drafts + 1 - len(sampled) if sampled else 0


class Ledger:
    """The books of one run."""

    def __init__(self, way: Way) -> None:
        self.salts = {request.request_id: request.cache_key for request in way.requests}
        # Prompts, and all that was sampled, whether the scheduler has heard of it or not.
        self.token_ids = {request.request_id: request.prompt_token_ids for request in way.requests}
        self.requests = {request.request_id: request for request in way.requests}
        self.ghost = GhostWorker(way.config.block_size)
        self.sights = Sights()
        self.faults: list[str] = []
        """What is wrong with the schedule itself."""
        # How many drafts of each step were wrong, where the scheduler has not heard of it.
        self._num_rejected: defaultdict[str, list[int]] = defaultdict(list)
        # How many blocks a preempted request had.
        self._num_lost_blocks: dict[str, int] = {}
        self._names: set[str] = set()

    def begin(self, output: SchedulerOutput) -> list[Part]:
        """Follows a step up to its execution; returns its parts in the order of the step."""
        for name in output.preempted_req_ids:
            self._num_lost_blocks[name] = len(self.ghost.block_tables.get(name, ()))
        self.ghost.preempt(output.preempted_req_ids)
        for name in output.scheduled_new_reqs:
            if name in self.requests:
                self._meet(name)
        for name, cached in output.scheduled_cached_reqs.items():
            self._hear(name, cached)
        report = self.ghost.execute(output, self.token_ids, self.salts)
        self.faults += [*report.diff, *report.writes, *report.reads]
        if report.diff:
            return []
        parts = [self._make_part(output, name) for name in output.num_scheduled_tokens]
        self._note(output, parts)
        return parts

    def end(self, output: SchedulerOutput, result: ModelRunnerOutput) -> None:
        """Enters what the step has sampled, and which drafts were rejected."""
        for name, sampled in result.sampled_token_ids.items():
            self.token_ids[name] = (*self.token_ids[name], *sampled)
            self.ghost.learn(name, self.token_ids[name])
            drafts = output.scheduled_spec_decode_tokens.get(name, [])
            if sampled and len(sampled) <= len(drafts):
                self._num_rejected[name].append(len(drafts) + 1 - len(sampled))

    def _meet(self, name: str) -> None:
        """Begins the page of a new request; what is on it belongs to another of its name."""
        request = self.requests[name]
        num_sampled = len(self.token_ids[name]) - len(request.prompt_token_ids)
        self.sights.num_reused_ids += name in self._names
        self.sights.num_reused_sampled_ids += num_sampled > 0
        self.sights.num_reused_ended_ids += num_sampled >= request.max_tokens
        self._names.add(name)
        self.token_ids[name] = request.prompt_token_ids
        self._num_rejected[name].clear()

    def _hear(self, name: str, cached: CachedRequestData) -> None:
        """Takes back drafts as soon as the scheduler does: it tells an earlier start then.

        Several steps may be planned before it hears that drafts of the first were wrong.
        """
        rejected = self._num_rejected[name]
        if cached.resumed:
            rejected.clear()
        while rejected and cached.num_computed_tokens != self.ghost.num_computed_tokens[name]:
            self.ghost.roll_back(name, rejected.pop(0))

    def _make_part(self, output: SchedulerOutput, name: str) -> Part:
        # Where the runner is, who knows of each rejected draft.
        end = self.ghost.num_computed_tokens[name] - sum(self._num_rejected[name])
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
            is_new=cached is None,
        )

    def _note(self, output: SchedulerOutput, parts: list[Part]) -> None:
        sights = self.sights
        sights.num_steps += 1
        sights.max_num_reqs = max(sights.max_num_reqs, len(parts))
        if parts:
            num_tokens = output.total_num_scheduled_tokens
            sights.shortest_step = min(sights.shortest_step or num_tokens, num_tokens)
        for name, cached in output.scheduled_cached_reqs.items():
            if cached.resumed:
                self._note_return(name, cached)
        for part in parts:
            first, last = (place // self.ghost.block_size for place in (part.start, part.end - 1))
            is_within = part.start % self.ghost.block_size > 0
            sights.num_wide_chunks += is_within and last - first > 1
            sights.num_partial_chunks += not part.is_sampled
            is_in_output = part.end > len(self.requests[part.request_id].prompt_token_ids)
            sights.num_partial_output_chunks += is_in_output and not part.is_sampled
            sights.greatest_length = max(sights.greatest_length, part.end)
            sights.longest_chunk = max(sights.longest_chunk, part.end - part.start)
            sights.num_hit_tokens += part.start if part.is_admitted else 0
            sights.max_num_drafts = max(sights.max_num_drafts, part.num_drafts)

    def _note_return(self, name: str, cached: CachedRequestData) -> None:
        self.sights.num_resumptions += 1
        self.sights.num_resumed_hit_tokens += cached.num_computed_tokens
        num_blocks = len(cached.new_block_ids)
        # A recorded run may begin in the middle.
        self.sights.num_shorter_tables += 1 < num_blocks < self._num_lost_blocks.get(name, 0)
