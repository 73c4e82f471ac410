"""Makes the toy a `spec.interface.Scheduler`: what an adapter has to do, for any engine."""

from __future__ import annotations

from collections.abc import Iterable

from examples.block_names import BlockNames
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
    """Builds the toy; schedcheck knows it as `examples.toy_adapter:make_toy`."""
    return ToyAdapter(config, ToyScheduler)


def make_lesson(config: SchedulerConfig) -> ToyAdapter:
    """Builds the program as the lesson has it."""
    return ToyAdapter(config, LessonScheduler)


class ToyAdapter:
    """Shows what the toy has done, and decides nothing.

    | Observation field                    | where the toy keeps it                                |
    |--------------------------------------|-------------------------------------------------------|
    | running, waiting                     | active, queue                                         |
    | status                               | in active or not; who waits and has run was preempted |
    | num_prompt_tokens, num_output_tokens | Job.prompt, Job.output                                |
    | num_computed_tokens                  | Job.computed and, for the step that runs, scheduled   |
    | num_in_flight_tokens                 | scheduled                                             |
    | num_preemptions                      | nowhere: None, and not compared                       |
    | placeholders, stale output           | 0, since a step ends before the next one begins       |
    | num_free_blocks                      | free                                                  |
    | block_ids, ref_cnt, free_block_ids   | counted in Job.blocks; BlockNames gives them names    |
    | cached_block_ids                     | nothing is ever published                             |
    | finished_req_ids                     | kept here, like all that a worker is told             |
    """

    def __init__(self, config: SchedulerConfig, kind: type[LessonScheduler]) -> None:
        self.toy = kind(
            block_size=config.block_size,
            token_budget=config.max_num_scheduled_tokens,
            max_seqs=config.max_num_seqs,
            total_blocks=config.num_blocks,
        )
        # Live requests, in the order of arrival.
        self.requests: dict[str, NewRequest] = {}
        self.jobs: dict[str, Job] = {}
        self.blocks = BlockNames(config.num_blocks)
        # Who has run, so that the worker knows them; and who has ended, as it does not know yet.
        self.known: set[str] = set()
        self.finished_req_ids: list[str] = []

    def add_request(self, new: NewRequest) -> None:
        """Counts the tokens of a request, and submits it."""
        num_prompt_tokens, stops = len(new.prompt_token_ids), frozenset(new.stop_token_ids)
        job = Job(new.request_id, num_prompt_tokens, new.max_tokens, stops)
        self.requests[new.request_id], self.jobs[new.request_id] = new, job
        self.toy.submit(job)

    def schedule(self) -> SchedulerOutput:
        """Lets the toy begin a step, and says of it what a worker would need to know."""
        was_active = list(self.toy.active)
        output = SchedulerOutput(self.toy.begin_step(), finished_req_ids=self.finished_req_ids)
        self.finished_req_ids = []
        # Each went to the head of the queue, so the first one evicted stands last.
        output.preempted_req_ids = [job.name for job in self.toy.queue if job in was_active][::-1]
        taken = self._name_blocks()
        output.new_block_ids_to_zero = [block_id for ids in taken.values() for block_id in ids]
        for name in output.num_scheduled_tokens:
            job, ids = self.jobs[name], taken[name]
            if name in self.known:
                told = CachedRequestData(job not in was_active, ids, job.computed)
                output.scheduled_cached_reqs[name] = told
            else:
                prompt = self.requests[name].prompt_token_ids
                output.scheduled_new_reqs[name] = NewRequestData(prompt, job.computed, ids)
        self.known.update(output.num_scheduled_tokens)
        return output

    def update_from_output(
        self, output: SchedulerOutput, result: ModelRunnerOutput
    ) -> dict[int, list[EngineCoreOutput]]:
        """Lets the toy end its step, and sends each client its token."""
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
        for name in [name for name in request_ids if name in self.jobs]:
            self.toy.cancel(name)
            self._forget(name)

    def observe(self) -> Observation:
        """Shows the toy."""
        return Observation(
            running=[job.name for job in self.toy.active],
            waiting=[job.name for job in self.toy.queue],
            requests={name: self._observe(job) for name, job in self.jobs.items()},
            num_free_blocks=self.toy.free,
            free_block_ids=list(self.blocks.free),
            ref_cnt={block_id: 1 for table in self.blocks.tables.values() for block_id in table},
            cached_block_ids=[],
            finished_req_ids=list(self.finished_req_ids),
            block_contents={},
        )

    def _observe(self, job: Job) -> RequestObservation:
        idle_status = "PREEMPTED" if job.name in self.known else "WAITING"
        num_in_flight_tokens = self.toy.scheduled.get(job.name, 0)
        return RequestObservation(
            status="RUNNING" if job in self.toy.active else idle_status,
            num_prompt_tokens=job.prompt,
            num_tokens=job.total,
            num_output_tokens=job.output,
            num_computed_tokens=job.computed + num_in_flight_tokens,
            num_preemptions=None,
            num_output_placeholders=0,
            num_in_flight_tokens=num_in_flight_tokens,
            block_ids=list(self.blocks.tables.get(job.name, [])),
            num_stale_output_tokens=0,
        )

    def _name_blocks(self) -> dict[str, list[int]]:
        return self.blocks.follow({name: job.blocks for name, job in self.jobs.items()})

    def _forget(self, name: str) -> None:
        del self.jobs[name], self.requests[name]
        self.known.discard(name)
        self.finished_req_ids.append(name)
        self._name_blocks()
