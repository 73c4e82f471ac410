"""The whole-sequence gate."""

from __future__ import annotations

from collections.abc import Iterator

from proofs.bounded import Claim, Run, bounded
from proofs.scenarios import SCHEDULE
from proofs.symbolic.values import symbolic_max
from spec.block_pool import cdiv


@bounded(*SCHEDULE, mutants=("only_the_chunk_must_fit",))
def the_whole_sequence_fits_at_admission(run: Run) -> Iterator[Claim]:
    """At an admission, blocks for all known tokens are free, and the watermark if anyone runs."""
    config = run.after.scheduler.config
    for each in run.after.scheduler.heard.admissions:
        num_blocks = cdiv(each.request.num_tokens, config.block_size) - each.hit.num_blocks
        num_needed_blocks = symbolic_max(num_blocks, 0) + each.hit.num_free_blocks
        if each.running:
            num_needed_blocks = num_needed_blocks + config.num_watermark_blocks
        yield f"room for {each.request.request_id}", num_needed_blocks <= each.num_free_blocks
