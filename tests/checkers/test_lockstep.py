from __future__ import annotations

import copy
import itertools

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkers.lockstep import MAX_SHOWN, Lockstep, compare
from checkers.run import Run
from spec.interface import SchedulerOutput
from spec.scheduler import ReferenceScheduler
from tests.spec.support import (
    choices,
    configs,
    make_config,
    make_environment,
    make_request,
    walk,
)


class Renaming(ReferenceScheduler):
    """The specification with other names for its blocks, and another order of handing them out."""

    def __init__(self, config, seed=0):
        super().__init__(config)
        queue = self.block_pool.free_block_queue
        self.block_pool.free_block_queue = queue[seed % len(queue) :] + queue[: seed % len(queue)]


class Altered:
    """The specification, whose answers and looks are altered on their way out."""

    def __init__(self, config):
        self.inner = ReferenceScheduler(config)
        self.alter_output = self.alter_results = self.alter_seen = lambda answer: None

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def schedule(self):
        """As altered."""
        output = copy.deepcopy(self.inner.schedule())
        self.alter_output(output)
        return output

    def update_from_output(self, output, result):
        """As altered."""
        results = copy.deepcopy(self.inner.update_from_output(output, result))
        self.alter_results(results)
        return results

    def observe(self):
        """As altered."""
        seen = copy.deepcopy(self.inner.observe())
        self.alter_seen(seen)
        return seen
