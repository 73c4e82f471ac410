from __future__ import annotations

import pytest
import torch

from gpu_conformance.alone import Alone
from gpu_conformance.ledger import Part
from gpu_conformance.oracle import Oracle, Tally
from spec.interface import ModelRunnerOutput, NewRequest

VOCAB, WIDTH = 5, 4


class Shows:
    """A runner that shows what it is told to."""

    def __init__(self, logits, kv):
        self.logits = logits
        self.kv = kv

    def execute(self, output):
        """Is not asked to."""
        raise NotImplementedError

    def get_logits(self):
        """The rows that it was given."""
        return {"r": self.logits}

    def read_kv(self, block_ids, num_tokens):
        """The rows that it was given."""
        return self.kv[:num_tokens]


@pytest.fixture
def alone():
    """A prompt of 3 tokens, and 2 that follow."""
    found = Alone(NewRequest(request_id="r", prompt_token_ids=(1, 2, 3), max_tokens=2))
    found.token_ids += [4, 0]
    found.logits = torch.arange(2.0 * VOCAB).view(2, VOCAB)
    found.kv = torch.arange(4.0 * WIDTH).view(4, WIDTH)
    return found


def make_part(start=0, end=3, **given):
    """The whole prompt, or what is asked for."""
    usual = {
        "num_drafts": 0,
        "is_sampled": end >= 3,
        "is_admitted": start == 0,
        "block_ids": (1, 2),
    }
    return Part(request_id="r", start=start, end=end, **{**usual, **given})


def watch(alone, *steps):
    """Shows an oracle steps: part, sampled tokens, logits, KV."""
    oracle = Oracle({"r": alone})
    for part, sampled, logits, kv in steps:
        oracle.watch(Shows(logits, kv), [part], ModelRunnerOutput({"r": sampled}))
    return oracle


def test_the_same_is_clean(alone):
    """A prompt in two chunks, then a token, is 4 rows of KV, 2 of logits, and 2 tokens."""
    oracle = watch(
        alone,
        (make_part(0, 2), [], None, alone.kv),
        (make_part(2, 3), [4], alone.logits[:1], alone.kv),
        (make_part(3, 4), [0], alone.logits[1:], alone.kv),
    )
    assert (Tally(6, 0, 2, 0), None) == (oracle.tally, oracle.first)


def test_a_new_request_under_a_name_is_compared_from_its_start(alone):
    """What the one before it has sampled, right or wrong, is not held against it."""
    first = make_part(is_new=True)
    oracle = watch(
        alone,
        (first, [4], alone.logits[:1], alone.kv),
        (first, [3], alone.logits[:1], alone.kv),
        (first, [4], alone.logits[:1], alone.kv),
        (make_part(3, 4), [0], alone.logits[1:], alone.kv),
    )
    assert (Tally(14, 0, 4, 1), 1) == (oracle.tally, oracle.first.step)


def test_one_bit_of_kv_is_seen(alone):
    """A row of KV that differs in its last bit is named by its position."""
    kv = alone.kv.clone()
    kv[1, 2] = torch.nextafter(kv[1, 2], torch.tensor(9.0))
    oracle = watch(alone, (make_part(), [4], alone.logits[:1], kv))
    assert Tally(4, 1, 1, 0) == oracle.tally
    assert ("KV", 1) == (oracle.first.kind, oracle.first.position)


def test_a_row_that_changes_later_is_seen(alone):
    """All KV is looked at in each step, and a row that is wrong for long counts once."""
    kv = alone.kv.clone()
    kv[0] = 9.0
    oracle = watch(
        alone,
        (make_part(), [4], alone.logits[:1], alone.kv),
        (make_part(3, 4), [0], alone.logits[1:], kv),
        (make_part(3, 4), [0], alone.logits[1:], kv),
    )
    assert (1, 1) == (oracle.first.step, oracle.tally.num_differing_rows)


def test_zero_has_a_sign_and_nan_is_itself(alone):
    """Bits are compared, not numbers: -0 is not 0, and NaN equals NaN."""
    alone.kv[0, 0], alone.kv[1, 0] = 0.0, float("nan")
    other = alone.kv.clone()
    assert watch(alone, (make_part(), [4], alone.logits[:1], other)).tally.is_clean
    other[0, 0] = -0.0
    assert not watch(alone, (make_part(), [4], alone.logits[:1], other)).tally.is_clean


def test_one_bit_of_logits_is_seen(alone):
    """A row of logits that differs is named with the size of it, and what would change a token."""
    logits = alone.logits[:1] + torch.tensor([0, 0, 0, 0, 0.5])
    first = watch(alone, (make_part(), [4], logits, alone.kv)).first
    assert ("logits", 2) == (first.kind, first.position)
    assert "off by up to 5.0e-01, between the two greatest lie 1.0e+00" == first.evidence


def test_rows_after_another_token_are_left_out(alone):
    """A request that has another token than alone goes on with other rows, which say nothing."""
    oracle = watch(
        alone,
        (make_part(), [2], alone.logits[:1], alone.kv),
        (make_part(3, 4), [2], alone.logits[:1], alone.kv + 1),
    )
    assert Tally(4, 0, 2, 2) == oracle.tally
    assert ("token", 3, "2, alone 4") == (
        oracle.first.kind,
        oracle.first.position,
        oracle.first.evidence,
    )


def test_a_token_in_the_middle_of_a_prompt_is_wrong(alone):
    """Whatever a chunk that is not the last samples differs, even if it is the right token."""
    oracle = watch(alone, (make_part(0, 2), [4], alone.logits[:1], alone.kv))
    assert "token" == oracle.first.kind
    assert "4 is sampled, and the prompt is not complete" == oracle.first.evidence


def test_a_token_that_is_missing_is_wrong(alone):
    """The last chunk of a prompt samples a token."""
    oracle = watch(alone, (make_part(), [], None, alone.kv))
    assert "none is sampled, and the prompt is complete" == oracle.first.evidence


def test_what_comes_after_the_last_token_is_left_out(alone):
    """A surplus step, or a draft past the end, has nothing to be compared with."""
    oracle = watch(
        alone,
        (make_part(), [4], alone.logits[:1], alone.kv),
        (make_part(3, 5, num_drafts=1), [0, 1], torch.cat([alone.logits[1:]] * 2), alone.kv),
    )
    assert Tally(6, 0, 2, 0) == oracle.tally


def test_kv_of_rejected_drafts_is_left_out(alone):
    """What was written for a wrong draft is nobody's."""
    kv = alone.kv.clone()
    kv[3] = 7.0
    part = make_part(0, 4, num_drafts=1)
    assert watch(alone, (part, [4], alone.logits[:1], kv)).tally.is_clean


def test_a_place_is_told(alone):
    """A difference names request, position, chunk, block and slot."""
    kv = alone.kv.clone()
    kv[3] = 7.0
    oracle = watch(alone, (make_part(3, 4, is_admitted=True), [0], alone.logits[:1], kv))
    assert oracle.first.describe(2).startswith(
        "r, position 3 (chunk 3 to 3 of step 0, block 2, slot 1): KV"
    )
