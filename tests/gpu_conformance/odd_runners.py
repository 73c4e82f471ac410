"""Runners that show their bits, and do one thing that no runner should."""

from __future__ import annotations

import time

import torch

from spec.interface import ModelRunnerOutput
from tests.gpu_conformance.support import Echo

VOCAB_SIZE = 128


class Refills(Echo):
    """One that returns the same object after each step, with what is new in it."""

    def __init__(self, block_size, num_blocks):
        super().__init__(block_size, num_blocks)
        self.buffer = ModelRunnerOutput({})

    def execute(self, output):
        """Runs one step."""
        sampled = super().execute(output).sampled_token_ids
        self.buffer.sampled_token_ids.clear()
        self.buffer.sampled_token_ids.update(sampled)
        return self.buffer


class Forgets(Echo):
    """One that makes its last answer no answer at all."""

    last = None

    def execute(self, output):
        """Runs one step."""
        if self.last is not None:
            self.last.sampled_token_ids = None
        self.last = super().execute(output)
        return self.last


class ClearsItsStep(Echo):
    """One that leaves nothing of the step that it was handed."""

    def execute(self, output):
        """Runs one step, and clears it."""
        result = super().execute(output)
        output.num_scheduled_tokens.clear()
        return result


class SamplesFarAbove(Echo):
    """One that returns what no vocabulary has."""

    def next_token(self, request_id, output):
        """A number of 41 bits."""
        return 2**40


class Open(Echo):
    """One that shows bits, which are all there is to see: its tokens, and how many it has seen."""

    def execute(self, output):
        """Runs one step."""
        result = super().execute(output)
        self.num_reqs = len(output.num_scheduled_tokens)
        self.logits = {
            name: torch.nn.functional.one_hot(torch.tensor(token_ids), VOCAB_SIZE).float()
            for name, token_ids in result.sampled_token_ids.items()
            if token_ids
        }
        return result

    def get_logits(self):
        """One is at the token, nothing elsewhere."""
        return {name: self.change_logits(rows) for name, rows in self.logits.items()}

    def read_kv(self, block_ids, num_tokens):
        """The number of each token."""
        return self.change_kv(torch.arange(float(num_tokens)).unsqueeze(1))

    def change_logits(self, rows):
        """As they are."""
        return rows

    def change_kv(self, rows):
        """As it is."""
        return rows


def show(name, change_logits=None, change_kv=None, min_num_reqs=1):
    """A runner that shows something else, in steps of so many requests."""

    def apply(change):
        return lambda runner, rows: change(rows) if runner.num_reqs >= min_num_reqs else rows

    changes = {"change_logits": change_logits, "change_kv": change_kv}
    return type(name, (Open,), {key: apply(change) for key, change in changes.items() if change})


def hang(rows):
    """Shows nothing, ever."""
    while True:
        time.sleep(0.01)


LogitsNaN = show("LogitsNaN", lambda rows: rows * torch.nan)
KvNaN = show("KvNaN", None, lambda rows: rows * torch.nan)
LogitsZero = show("LogitsZero", lambda rows: rows * 0)
KvZero = show("KvZero", None, lambda rows: rows * 0)
LogitsEmpty = show("LogitsEmpty", lambda rows: rows[:, :0])
KvEmpty = show("KvEmpty", None, lambda rows: rows[:, :0])
LogitsHang = show("LogitsHang", hang)
KvHang = show("KvHang", None, hang)
LogitsBool = show("LogitsBool", lambda rows: rows.bool())
LogitsFp8 = show("LogitsFp8", lambda rows: rows.to(torch.float8_e4m3fn))
LogitsSparse = show("LogitsSparse", lambda rows: rows.to_sparse())
LogitsFew = show("LogitsFew", lambda rows: rows[:, :1])
LogitsMeta = show("LogitsMeta", lambda rows: rows.to("meta"))
KvNested = show(
    "KvNested", None, lambda rows: torch.nested.as_nested_tensor([*rows], layout=torch.jagged)
)
KvComplex = show("KvComplex", None, lambda rows: rows.to(torch.complex64))
KvFp8 = show("KvFp8", None, lambda rows: rows.to(torch.float8_e4m3fn))
# What these show depends on who is beside.
Narrow = show("Narrow", lambda rows: rows[:, :102], None, 2)
Double = show("Double", None, lambda rows: rows.double(), 2)
Odd = show("Odd", lambda rows: rows * torch.nan, None, 2)


class LogitsNone(Open):
    """One that has no logits to show."""

    def get_logits(self):
        """Nothing."""


class KvRefilled(Open):
    """One that shows all KV in the same memory."""

    memory = torch.zeros(4096, 1)

    def read_kv(self, block_ids, num_tokens):
        """The number of each token, and of the request that is alone, if it is."""
        rows = super().read_kv(block_ids, num_tokens) + 1000 * (self.num_reqs > 1)
        self.memory[:num_tokens] = rows
        return self.memory[:num_tokens]


class HangsAtBirth(Echo):
    """One that is never made."""

    def __init__(self, block_size, num_blocks):
        hang(None)
