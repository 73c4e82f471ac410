"""A small bench, and runners that are not ours."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress

import torch

import gpu_conformance.axes  # noqa: F401  (registers)
from gpu_conformance.bench import Bench
from gpu_conformance.registry import AXES
from gpu_conformance.subject import make_subject
from gpu_conformance.work import WORKS, Work, make_requests
from impl.scheduler import FastScheduler
from spec.interface import EngineCoreOutput, ModelRunnerOutput, SchedulerOutput

SMALL = Work((3, 17, 20, 20), 3)


def make_bench(backend="tile", dtype="float32", work=SMALL):
    """Our runner with few requests."""
    return Bench(make_subject("tiny", backend, dtype, "cpu"), make_requests(work))


def make_tiny_bench(backend="tile"):
    """Our runner with the usual requests."""
    return make_bench(backend, work=WORKS["tiny"])


def run(bench, axis, value):
    """Runs one value."""
    return bench.run(AXES[axis], value)


class Echo:
    """A foreign runner without a model: the next token is worked out of all tokens before it."""

    def __init__(self, block_size, num_blocks):
        self.token_ids = {}
        self.num_computed_tokens = {}

    def next_token(self, request_id, output):
        """The sum of the tokens, folded."""
        return sum(self.token_ids[request_id]) % 97

    def execute(self, output):
        """Runs one step."""
        sampled = {}
        for name, new in output.scheduled_new_reqs.items():
            self.token_ids[name] = list(new.prompt_token_ids)
            self.num_computed_tokens[name] = new.num_computed_tokens
        for name, cached in output.scheduled_cached_reqs.items():
            self.num_computed_tokens[name] = cached.num_computed_tokens
        for name, num_tokens in output.num_scheduled_tokens.items():
            self.num_computed_tokens[name] += num_tokens
            sampled[name] = []
            if self.num_computed_tokens[name] == len(self.token_ids[name]):
                sampled[name] = [self.next_token(name, output)]
                self.token_ids[name] += sampled[name]
        return ModelRunnerOutput(sampled)


class FeelsItsBatch(Echo):
    """One whose tokens depend on who is computed beside them."""

    def next_token(self, request_id, output):
        """One more if it is not alone."""
        return super().next_token(request_id, output) + (len(output.num_scheduled_tokens) > 1)


class Hangs(Echo):
    """One that does not return from a step in which somebody is beside the first request."""

    def execute(self, output):
        """Runs one step, or goes on for ever, whatever is thrown at it."""
        while len(output.num_scheduled_tokens) > 1:
            with suppress(Exception):
                sum(range(1000))
        return super().execute(output)


class Exits(Echo):
    """One that ends its process, as if all were well, once somebody is beside the first request."""

    def execute(self, output):
        """Runs one step, or nothing ever again."""
        if len(output.num_scheduled_tokens) > 1:
            self.end()
        return super().execute(output)

    def end(self):
        """Ends the process."""
        ctypes.CDLL(None)._exit(0)


class Killed(Exits):
    """One whose process is ended from outside, as for want of memory."""

    def end(self):
        """Ends the process."""
        os.kill(os.getpid(), signal.SIGKILL)


class Prints(Echo):
    """One that has something to say."""

    def execute(self, output):
        """Runs one step, and tells."""
        print("a step")  # noqa: T201  (what it is about)
        os.write(1, b"a step\n")
        return super().execute(output)


class Raises(Echo):
    """One that takes one new request at a time."""

    def execute(self, output):
        """Runs one step, or gives up."""
        if len(output.scheduled_new_reqs) > 1:
            raise RuntimeError("out of memory")
        return super().execute(output)


class SamplesNothing(Echo):
    """One that forgets what it has sampled."""

    def execute(self, output):
        """Runs one step, and returns no token."""
        return ModelRunnerOutput({name: [] for name in output.num_scheduled_tokens})


class SamplesTooMuch(Echo):
    """One that goes on where nobody has asked it to."""

    def execute(self, output):
        """Runs one step, and returns two tokens of each request."""
        return ModelRunnerOutput({name: [1, 2] for name in output.num_scheduled_tokens})


class SamplesBelowZero(Echo):
    """One that returns what is no token."""

    def next_token(self, request_id, output):
        """A number that marks a place, in some engines."""
        return -1


class AlwaysSaysTheSame(Echo):
    """One that looks at nothing."""

    def next_token(self, request_id, output):
        """Five."""
        return 5


class AnswersNone(Echo):
    """One that returns nothing."""

    def execute(self, output):
        """Runs no step."""


class ShowsNoLogits(Echo):
    """One that shows KV, and no logits of who samples."""

    def get_logits(self):
        """None."""
        return {}

    def read_kv(self, block_ids, num_tokens):
        """A number for each token."""
        return torch.zeros(num_tokens, 1)


class Leaves(Echo):
    """One that ends the process."""

    def execute(self, output):
        """Leaves."""
        sys.exit(0)


class RaisesLater(FastScheduler):
    """An engine that plans two steps."""

    def schedule(self):
        """Plans a step, or gives up."""
        self.num_planned = getattr(self, "num_planned", 0) + 1
        if self.num_planned > 2:
            raise ValueError("lost count")
        return super().schedule()


class PlansNothing(FastScheduler):
    """An engine that plans empty steps."""

    def schedule(self):
        """Plans nothing."""
        return SchedulerOutput()


class RefusesAll(FastScheduler):
    """An engine that takes nobody."""

    def add_request(self, request):
        """Refuses it."""
        return EngineCoreOutput(request.request_id, [], "error")


def make_dict(config):
    """No engine."""
    return {}


def raise_at_once(config):
    """No engine either."""
    raise OSError("no licence")


class RunsNothing:
    """One without `execute`."""

    def __init__(self, block_size, num_blocks):
        """Takes what it is given."""


class ShowsHalf(Echo):
    """One that shows logits and no KV."""

    def get_logits(self):
        """None."""
        return {}


class TakesNothing(Echo):
    """One that is made of nothing."""

    def __init__(self):
        super().__init__(16, 4)
