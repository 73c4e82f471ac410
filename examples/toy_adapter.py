"""Makes the toy look like a `spec.interface.Scheduler`: what an adapter for any engine has to do."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from examples.lesson_scheduler import Job, LessonScheduler
from examples.toy_scheduler import ToyScheduler
from spec.interface import (
    CachedRequestData,
    EngineCoreOutput,
    ModelRunnerOutput,
    NewRequest,
    NewRequestData,
    Observation,
    RequestObservation,
    RequestStatus,
    SchedulerConfig,
    SchedulerOutput,
)


def make_toy(config: SchedulerConfig) -> ToyAdapter:
    """Builds the toy: an engine is named `examples.toy_adapter:make_toy`."""
    return ToyAdapter(config, ToyScheduler)


def make_lesson(config: SchedulerConfig) -> ToyAdapter:
    """Builds the program as the lesson has it."""
    return ToyAdapter(config, LessonScheduler)


class ToyAdapter:
    """An adapter shows what the engine has done, and decides nothing.

    | Observation field      | where the toy keeps it                                              |
    |------------------------|---------------------------------------------------------------------|
    | running, waiting       | active, queue                                                       |
    | requests: status       | active or not; whoever waits and has run before was preempted       |
    | num_prompt_tokens      | Job.prompt                                                          |
    | num_output_tokens      | Job.output                                                          |
    | num_computed_tokens    | Job.computed, which the toy advances when a step ends, plus what is |
    |                        | scheduled of the job                                                |
    | num_in_flight_tokens   | scheduled                                                           |
    | num_preemptions        | nowhere, so None: not compared                                      |
    | num_output_placeholders, num_stale_output_tokens | 0: a step ends before the next begins     |
    | num_free_blocks        | free                                                                |
    | block_ids, ref_cnt,    | nowhere: the toy counts blocks, and the adapter names them. A name  |
    | free_block_ids         | goes out when Job.blocks grows and comes back when it shrinks. If   |
    |                        | the toy counts out more than there are, names past the pool tell    |
    | cached_block_ids       | nothing is ever published                                           |
    | finished_req_ids, and what the worker is told | kept here: the toy has no worker             |
    """

    def __init__(self, config: SchedulerConfig, kind: type[LessonScheduler]) -> None:
        self.toy = kind(
            block_size=config.block_size,
            token_budget=config.max_num_scheduled_tokens,
            max_seqs=config.max_num_seqs,
            total_blocks=config.num_blocks,
        )
        # Live requests, in the order of arrival, and the names of their blocks.
        self.requests: dict[str, NewRequest] = {}
        self.jobs: dict[str, Job] = {}
        self.block_ids: dict[str, list[int]] = {}
        self.free_block_ids = list(range(1, config.num_blocks + 1))
        self.surplus_block_ids = count(config.num_blocks + 1)
        self.finished_req_ids: list[str] = []
        # Whom the worker has been told about.
        self.known: set[str] = set()

    def add_request(self, new: NewRequest) -> None:
        """Counts the tokens of a request and submits it."""
        name = new.request_id
        job = Job(name, len(new.prompt_token_ids), new.max_tokens, frozenset(new.stop_token_ids))
        self.requests[name], self.jobs[name], self.block_ids[name] = new, job, []
        self.toy.submit(job)

    def schedule(self) -> SchedulerOutput:
        """Lets the toy begin a step, and tells a worker of it."""
        was_active = list(self.toy.active)
        resumable = {name for name in self.known if not self.block_ids[name]}
        output = SchedulerOutput(self.toy.begin_step(), finished_req_ids=self.finished_req_ids)
        self.finished_req_ids = []
        # Each was put to the head, so the first evicted stands last.
        output.preempted_req_ids = [job.name for job in self.toy.queue if job in was_active][::-1]
        taken = self._name_blocks()
        output.new_block_ids_to_zero = [block_id for ids in taken.values() for block_id in ids]
        for name in output.num_scheduled_tokens:
            start, ids = self.jobs[name].computed, taken[name]
            if name in self.known:
                is_resumed = name in resumable
                output.scheduled_cached_reqs[name] = CachedRequestData(is_resumed, ids, start)
            else:
                prompt = self.requests[name].prompt_token_ids
                output.scheduled_new_reqs[name] = NewRequestData(prompt, start, ids)
                self.known.add(name)
        return output

    def update_from_output(
        self, output: SchedulerOutput, result: ModelRunnerOutput
    ) -> dict[int, list[EngineCoreOutput]]:
        """Lets the toy end its step; sends each client its token."""
        tokens = {name: ids[0] for name, ids in result.sampled_token_ids.items() if ids}
        results: dict[int, list[EngineCoreOutput]] = {}
        for name, ending in self.toy.end_step(tokens):
            sent = EngineCoreOutput(name, [tokens[name]], ending)
            results.setdefault(self.requests[name].client_index, []).append(sent)
            if ending:
                self._forget(name)
        return results

    def finish_requests(self, request_ids: Iterable[str], finished_status: RequestStatus) -> None:
        """Cancels requests."""
        for name in request_ids:
            if name in self.jobs:
                self.toy.cancel(name)
                self._forget(name)

    def observe(self) -> Observation:
        """Shows the toy."""
        tables = {name: list(ids) for name, ids in self.block_ids.items()}
        return Observation(
            running=[job.name for job in self.toy.active],
            waiting=[job.name for job in self.toy.queue],
            requests={name: self._observe(job, tables[name]) for name, job in self.jobs.items()},
            num_free_blocks=self.toy.free,
            free_block_ids=list(self.free_block_ids),
            ref_cnt={block_id: 1 for ids in tables.values() for block_id in ids},
            cached_block_ids=[],
            finished_req_ids=list(self.finished_req_ids),
            block_contents={},
        )

    def _observe(self, job: Job, block_ids: list[int]) -> RequestObservation:
        waits_as = "PREEMPTED" if job.name in self.known else "WAITING"
        num_in_flight_tokens = self.toy.scheduled.get(job.name, 0)
        return RequestObservation(
            status="RUNNING" if job in self.toy.active else waits_as,
            num_prompt_tokens=job.prompt,
            num_tokens=job.total,
            num_output_tokens=job.output,
            num_computed_tokens=job.computed + num_in_flight_tokens,
            num_preemptions=None,
            num_output_placeholders=0,
            num_in_flight_tokens=num_in_flight_tokens,
            block_ids=block_ids,
            num_stale_output_tokens=0,
        )

    def _name_blocks(self) -> dict[str, list[int]]:
        """Follows the toy's counts with names; returns the new ones of each request."""
        for name, job in self.jobs.items():
            self.free_block_ids += self.block_ids[name][job.blocks :]
            self.block_ids[name] = self.block_ids[name][: job.blocks]
        taken = {}
        for name, job in self.jobs.items():
            missing = job.blocks - len(self.block_ids[name])
            taken[name] = [self._take_name() for _ in range(missing)]
            self.block_ids[name] += taken[name]
        return taken

    def _take_name(self) -> int:
        return self.free_block_ids.pop(0) if self.free_block_ids else next(self.surplus_block_ids)

    def _forget(self, name: str) -> None:
        self.free_block_ids += self.block_ids.pop(name)
        del self.jobs[name], self.requests[name]
        self.known.discard(name)
        self.finished_req_ids.append(name)
