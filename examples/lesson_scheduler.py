"""The program that ends the lesson on one scheduling step, as a library.

It counts blocks and has no names for them. Its loop is cut where a model would run: `begin_step`
decides, `end_step` settles. What the lesson leaves out is left out here, too: a job that cannot
grow holds everybody up, where a real scheduler would preempt.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(eq=False)
class Job:
    """A prompt to be read and answered; all of it is counts."""

    name: str
    prompt: int
    max_new: int
    stops: frozenset[int] = frozenset()
    """Tokens that end the answer; the lesson's program does not look at them."""
    output: int = 0
    computed: int = 0
    blocks: int = 0

    @property
    def total(self) -> int:
        """Tokens of the prompt and of the answer so far."""
        return self.prompt + self.output


class LessonScheduler:
    """Two passes: running jobs in the order of admission, then the head of the queue."""

    def __init__(
        self, *, block_size: int, token_budget: int, max_seqs: int, total_blocks: int
    ) -> None:
        self.block_size = block_size
        self.token_budget = token_budget
        self.max_seqs = max_seqs
        self.free = total_blocks
        self.queue: deque[Job] = deque()
        self.active: list[Job] = []
        # The step that is being computed: tokens per job, and what is left of the budget.
        self.scheduled: dict[str, int] = {}
        self.budget = 0
        # Why nobody (else) is admitted in this step.
        self.note = ""

    def submit(self, job: Job) -> None:
        """Puts a job at the end of the queue."""
        self.queue.append(job)

    def cancel(self, name: str) -> None:
        """Drops a job, wherever it is."""
        self.queue = deque(job for job in self.queue if job.name != name)
        for job in [job for job in self.active if job.name == name]:
            self._drop(job)

    def begin_step(self) -> dict[str, int]:
        """Decides how many tokens of which job to compute."""
        self.scheduled, self.budget, self.note = {}, self.token_budget, ""
        for job in self.active:
            if self.budget == 0 or not self._schedule(job):
                break
        while self.queue and self.budget > 0 and not self.note:
            self._admit()
        return dict(self.scheduled)

    def end_step(self, tokens: dict[str, int]) -> list[tuple[str, str | None]]:
        """Settles the step: who has got a token, and how that ends the job, if it does."""
        news = []
        for job in [job for job in self.active if job.name in self.scheduled]:
            job.computed += self.scheduled[job.name]
            if job.computed == job.total:
                job.output += 1
                ending = self._ending(job, tokens[job.name])
                news.append((job.name, ending))
                if ending:
                    self._drop(job)
        self.scheduled = {}
        return news

    def _schedule(self, job: Job) -> bool:
        """Gives a job its next tokens and the blocks for them; False if it cannot grow."""
        tokens = min(job.total - job.computed, self.budget)
        need = self._blocks_for(job.computed + tokens) - job.blocks
        if not self._has_room(job, need):
            return False
        self.free -= need
        job.blocks += need
        self.scheduled[job.name] = tokens
        self.budget -= tokens
        return True

    def _has_room(self, job: Job, need: int) -> bool:
        if need > self.free:
            self.note = f"{job.name} cannot grow (a real scheduler would preempt here)"
        return need <= self.free

    def _admit(self) -> None:
        """Admits the head of the queue; all of it must fit, not just the first chunk."""
        job = self.queue[0]
        need = self._blocks_for(job.total)
        if len(self.active) >= self.max_seqs:
            self.note = "max_seqs reached"
        elif need > self.free:
            self.note = f"{job.name} needs {need} blocks, {self.free} free: stop admitting"
        else:
            self.active.append(self.queue.popleft())
            self._schedule(job)

    def _ending(self, job: Job, token: int) -> str | None:
        return "length" if job.output == job.max_new else None

    def _drop(self, job: Job) -> None:
        self.active.remove(job)
        self.free += job.blocks

    def _blocks_for(self, tokens: int) -> int:
        return (tokens + self.block_size - 1) // self.block_size
