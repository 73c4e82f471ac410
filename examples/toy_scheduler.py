"""The lesson's program with what it leaves out: preemption, and tokens that end an answer."""

from __future__ import annotations

from examples.lesson_scheduler import Job, LessonScheduler


class ToyScheduler(LessonScheduler):
    """A job that cannot grow takes the place of the last one admitted, or gives up its own."""

    def _has_room(self, job: Job, need: int) -> bool:
        # Victims leave from the end of `active`, behind the pass that walks over it.
        while need > self.free:
            victim = self.active[-1]
            self._evict(victim)
            if victim is job:
                return False
        return True

    def _evict(self, victim: Job) -> None:
        """Sends a job back to the head of the queue; it keeps its answer so far, but no blocks."""
        self._drop(victim)
        victim.computed = victim.blocks = 0
        self.queue.appendleft(victim)
        self.note = f"{victim.name} evicted: admit nobody"

    def _ending(self, job: Job, token: int) -> str | None:
        return "stop" if token in job.stops else super()._ending(job, token)
