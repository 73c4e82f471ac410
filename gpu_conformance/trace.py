"""Every row of every layer and stage of a run, as a hash: what two runs are compared by.

Entry point: `Trace`. It looks through the runner's tap, so it costs nothing where it is not used.
"""

from __future__ import annotations

import torch
from attrs import frozen

from gpu_conformance.ledger import Part
from gpu_conformance.placement import Write
from gpu_conformance.runners import OurRunner, Runner, bits_of
from impl.runner.batch import StepBatch
from impl.runner.model import STAGES
from spec.interface import ModelRunnerOutput

Tensor = torch.Tensor

KV_IN_SIGHT = "KV in sight"
"""What a row can see of the cache, by the runner's own block table: a stage of its own."""
OF_SAMPLED = ("final_norm", "logits")
"""Stages of those rows only that sample."""
RETURNED = "logits as returned"
"""What each request is given of the logits that were computed: the last stage."""
_place = STAGES.index("attention")
ALL_STAGES = (*STAGES[:_place], KV_IN_SIGHT, *STAGES[_place:], RETURNED)
ODD = 0x9E3779B97F4A7C15 - 2**64
"""A number whose multiples are spread over all whole numbers of 64 bits."""


Place = tuple[int, str, int]
"""Layer, stage and position."""


@frozen(order=True)
class Key:
    """A row; in the order in which one may come to differ because of another."""

    layer: int
    stage: int
    """Its place in `ALL_STAGES`."""
    step: int
    position: int
    request_id: str

    @property
    def stage_name(self) -> str:
        """As reports call it."""
        return ALL_STAGES[self.stage]


class Trace:
    """Watches one run, through the tap and after each step."""

    def __init__(self, keep: frozenset[str] = frozenset()) -> None:
        self.keep = keep
        """Stages of which the rows themselves are kept."""
        self.hashes: dict[Key, int] = {}
        self.rows: dict[Key, Tensor] = {}
        self.rejected: dict[Key, int] = {}
        """Hashes of rows that were computed for wrong drafts, and are compared with nothing."""
        self.parts: dict[tuple[int, str], Part] = {}
        """By step and request."""
        self.writes: list[Write] = []
        """Of KV, in order."""
        self.tables: dict[tuple[int, str], list[int]] = {}
        """The runner's own block tables, by step and request."""
        self._step = 0
        self._runner: OurRunner | None = None
        self._batch: StepBatch | None = None
        # Of the step that runs, by layer and stage: hashes and, where they are kept, rows.
        self._seen: dict[tuple[int, str], tuple[list[int], list[Tensor]]] = {}

    def meet(self, runner: Runner) -> None:
        """Looks into a runner from now on."""
        assert isinstance(runner, OurRunner), "only our runner has a tap"
        self._runner = runner
        runner.tap = self

    # ---- while a step runs -----------------------------------------------------------------------

    def begin(self, batch: StepBatch) -> None:
        """A step begins."""
        self._batch = batch

    def see(self, layer: int, stage: str, rows: Tensor) -> None:
        """Takes the rows of a stage; before those of attention, what these were about to see."""
        if stage == "attention":
            in_sight = self._hash_kv(layer)
            # By position, so that KV in another order is other KV.
            hashes = [int((kv * (torch.arange(len(kv)) * 2 + 1)).sum()) for kv in in_sight]
            self._enter(layer, KV_IN_SIGHT, hashes, in_sight)
        self._enter(layer, stage, hash_rows(rows).tolist(), list(rows.detach().cpu()))

    def _enter(self, layer: int, stage: str, hashes: list[int], rows: list[Tensor]) -> None:
        kept = [row.clone() for row in rows] if stage in self.keep else []
        self._seen[layer, stage] = (hashes, kept)

    def _hash_kv(self, layer: int) -> list[Tensor]:
        """Returns, for each token of the step, a hash of each token's KV that it sees."""
        assert self._runner is not None, "it was met before it runs"
        assert self._batch is not None, "a step begins before rows are seen"
        attention, cache = self._batch.attention, self._runner.kv_cache
        tables = attention.block_tables.tolist()
        in_sight = []
        for row, position in zip(
            attention.request_of_token.tolist(), attention.positions.tolist(), strict=True
        ):
            key, value = cache.read(layer, tables[row], position + 1)
            in_sight.append(hash_rows(torch.cat([key, value], dim=1)).cpu())
        return in_sight

    # ---- after a step ----------------------------------------------------------------------------

    def watch(self, runner: Runner, parts: list[Part], result: ModelRunnerOutput) -> None:
        """Names the rows of the step, by what the requests were to compute in it."""
        names = [(part, position) for part in parts for position in range(part.start, part.end)]
        for (layer, stage), (hashes, rows) in self._seen.items():
            for number, (part, position) in self._pick(stage, names):
                if number < len(hashes):
                    row = rows[number] if rows else None
                    place = (layer, stage, position)
                    self._take(place, part, result, hashes[number], row)
        self.parts |= {(self._step, part.request_id): part for part in parts}
        if self._batch is not None:
            self._note_places(self._batch, names)
            self._take_returned(parts, result)
        self._seen, self._batch = {}, None
        self._step += 1

    def _take(
        self,
        place: Place,
        part: Part,
        result: ModelRunnerOutput,
        value: int,
        row: Tensor | None,
    ) -> None:
        """Takes the hash of a row, and the row itself if it is kept."""
        layer, stage, position = place
        key = Key(layer, ALL_STAGES.index(stage), self._step, position, part.request_id)
        sampled = result.sampled_token_ids.get(part.request_id, [])
        if position >= part.end - part.count_rejected(sampled):
            self.rejected[key] = value
            return
        self.hashes[key] = value
        if row is not None:
            self.rows[key] = row

    def _take_returned(self, parts: list[Part], result: ModelRunnerOutput) -> None:
        """Takes the rows of logits that each request is given: the last of its tokens' rows."""
        assert self._runner is not None, "it was met before it runs"
        logits = self._runner.get_logits()
        for part in parts:
            rows = logits.get(part.request_id)
            if rows is None:
                continue
            first = part.end - 1 - part.num_drafts
            for number, value in enumerate(hash_rows(rows).tolist()):
                place = (self._runner.config.num_hidden_layers, RETURNED, first + number)
                row = rows[number].detach().cpu().clone() if RETURNED in self.keep else None
                self._take(place, part, result, value, row)

    def _note_places(self, batch: StepBatch, names: list[tuple[Part, int]]) -> None:
        """Notes where the runner writes KV, and where it will look for it."""
        assert self._runner is not None, "it was met before it runs"
        size = self._runner.kv_cache.block_size
        tables = batch.attention.block_tables.tolist()
        rows = zip(
            names, batch.slots.tolist(), batch.attention.request_of_token.tolist(), strict=False
        )
        for (part, position), slot, row in rows:
            expected = part.block_ids[position // size] * size + position % size
            self.writes.append(Write(self._step, part.request_id, position, slot, expected))
            self.tables[self._step, part.request_id] = tables[row]

    def _pick(
        self, stage: str, names: list[tuple[Part, int]]
    ) -> list[tuple[int, tuple[Part, int]]]:
        """Names the rows of a stage by their numbers."""
        if stage not in OF_SAMPLED:
            return list(enumerate(names))
        assert self._batch is not None, "a step begins before rows are seen"
        numbers = enumerate(self._batch.logits_rows.tolist())
        return [(number, names[row]) for number, row in numbers if row < len(names)]

    # ---- after the run ---------------------------------------------------------------------------

    def find_owner(self, returned: Key) -> Key | None:
        """Whose row of logits was returned: the latest computed that is the same; None if none."""
        value = self.hashes[returned]
        found = [
            key
            for key, other in (*self.hashes.items(), *self.rejected.items())
            if key.stage_name == "logits" and other == value and key.step <= returned.step
        ]
        return max(found, key=lambda key: key.step, default=None)


def hash_rows(rows: Tensor) -> Tensor:
    """A hash of the bits of each row: whole numbers are added, so in any order."""
    bits = bits_of(rows.flatten(1)).long()
    factors = (torch.arange(1, bits.shape[1] + 1, device=bits.device) * ODD) | 1
    return (bits * factors).sum(dim=1)
