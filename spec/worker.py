"""A ghost of the model runner, which believes the scheduler and knows what each KV slot holds.

Entry point: `GhostWorker.execute`. It reconstructs every block table and token count from
`SchedulerOutput`s alone, and remembers for every block which tokens' KV was last written there;
so it notices a diff that is not sufficient, a step that reads what nobody wrote, and a block that
is published though no executed step wrote it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from attrs import define, field

from spec.interface import (
    BlockContent,
    KVLoad,
    Observation,
    RequestObservation,
    SchedulerOutput,
)


@define(eq=False)
class Writer:
    """One life of a request, from admission to preemption: whose tokens a slot's KV belongs to."""

    cache_key: str | None
    token_ids: tuple[int, ...]
    """As far as they are known; tokens sampled by steps in flight follow when they arrive."""


@define
class KVBlock:
    """What a block holds: KV of `writer`'s block number `index`, in its slots `[first, end)`."""

    writer: Writer
    index: int
    first: int
    end: int


@define
class WorkerReport:
    """What a worker cannot do with a step; each a sentence of evidence."""

    diff: list[str] = field(factory=list)
    """Where the new/cached diff does not let it reconstruct the state."""
    writes: list[str] = field(factory=list)
    """Where a step overwrites KV that another request still needs."""
    reads: list[str] = field(factory=list)
    """Where a step reads KV that was never written, or belongs to other tokens."""
    block_tables: dict[str, list[int]] = field(factory=dict)
    """What the worker believes that each scheduled request holds."""


class GhostWorker:
    """A worker that keeps its own state (vllm/v1/worker/gpu_model_runner.py: _update_states)."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.block_tables: dict[str, list[int]] = {}
        self.num_computed_tokens: dict[str, int] = {}
        self.writers: dict[str, Writer] = {}
        self.blocks: dict[int, KVBlock] = {}
        # The loads in progress, by request.
        self.loads: dict[str, KVLoad] = {}
        # Whose KV has been loaded, and who has computed nothing since.
        self.loaded: set[str] = set()

    @classmethod
    def trusting(
        cls,
        block_size: int,
        seen: Observation,
        writers: dict[str, Writer],
        loads: dict[str, KVLoad],
    ) -> GhostWorker:
        """A worker without a history: it trusts that what is computed or published was written.

        That is what the invariants said of every state before, so an explorer need not keep a
        worker's memory in its states. Whatever else the blocks may hold does not count: nobody
        may rely on it. Needs `block_contents`.
        """
        worker = cls(block_size)
        for block_id, (salt, token_ids) in (seen.block_contents or {}).items():
            writer = Writer(salt, token_ids)
            index = len(token_ids) // block_size - 1
            worker.blocks[block_id] = KVBlock(writer, index, 0, block_size)
        for request_id in seen.running:
            request, writer = seen.requests[request_id], writers[request_id]
            worker.writers[request_id] = writer
            worker.block_tables[request_id] = list(request.block_ids)
            worker.num_computed_tokens[request_id] = request.num_computed_tokens
            worker._trust(request, writer)
        for request_id in seen.waiting:
            request = seen.requests[request_id]
            if request.num_preemptions or request.status == "PREEMPTED":
                worker.block_tables[request_id] = []
            if request_id not in loads and request_id not in seen.deferred_loads:
                worker._trust(request, writers[request_id])
                if request.block_ids and request.num_computed_tokens >= request.num_tokens - 1:
                    worker.loaded.add(request_id)
            if request.status == "WAITING_FOR_STREAMING_REQ" and request.block_ids:
                worker.writers[request_id] = writers[request_id]
                worker.block_tables[request_id] = list(request.block_ids)
        for request_id, load in loads.items():
            worker._begin_load(request_id, load)
        return worker

    def _trust(self, request: RequestObservation, writer: Writer) -> None:
        """Believes that what a request has computed stands in its blocks."""
        for index, block_id in enumerate(request.block_ids):
            end = min(request.num_computed_tokens - index * self.block_size, self.block_size)
            # The last block of a loaded prompt is whole, though its last token is computed again.
            known = self.blocks.get(block_id)
            if end > 0 and (known is None or not self._holds(known, writer, index, end)):
                self.blocks[block_id] = KVBlock(writer, index, 0, end)

    def execute(
        self,
        output: SchedulerOutput,
        token_ids: dict[str, tuple[int, ...]],
        salts: dict[str, str | None],
        resumable: Container[str] = (),
    ) -> WorkerReport:
        """Runs a step. `token_ids` and `salts` are those of the live requests, as far as known.

        Who is `resumable` is sent as new with each chunk of its prompt.
        """
        report = WorkerReport()
        for request_id in output.finished_req_ids:
            self._forget(request_id)
        starts = self._follow_diff(output, token_ids, salts, resumable, report)
        if report.diff:
            return report
        for block_id in output.new_block_ids_to_zero or ():
            self.blocks.pop(block_id, None)
        # Who was admitted in this step may have hit blocks that this very step writes.
        settled = [
            name
            for name in self.writers
            if name not in output.scheduled_new_reqs and not _is_resumed(output, name)
        ]
        written: dict[int, str] = {}
        for request_id, load in output.kv_loads.items():
            for block_id in load.block_ids:
                report.writes += self._clashes(request_id, block_id, settled, written)
            self._begin_load(request_id, load)
        for request_id, num_tokens in output.num_scheduled_tokens.items():
            for block_id in self._write(request_id, starts[request_id], num_tokens):
                report.writes += self._clashes(request_id, block_id, settled, written)
        # Attention stores KV before it reads it, so hits on blocks of this very step are fine.
        for request_id in output.num_scheduled_tokens:
            self._check_reads(request_id, starts[request_id], report)
            report.block_tables[request_id] = list(self.block_tables[request_id])
        return report

    def learn(self, request_id: str, token_ids: tuple[int, ...]) -> None:
        """The tokens of a request that has not been preempted since are known further."""
        if request_id in self.writers:
            self.writers[request_id].token_ids = token_ids

    def roll_back(self, request_id: str, num_rejected: int) -> None:
        """Forgets what the last steps wrote for drafts that turned out wrong.

        What they wrote later in steps in flight moves down with it.
        """
        num_computed_tokens = self.num_computed_tokens[request_id] - num_rejected
        self.num_computed_tokens[request_id] = num_computed_tokens
        for index, block_id in enumerate(self.block_tables[request_id]):
            block = self.blocks.get(block_id)
            if block is not None and block.writer is self.writers.get(request_id):
                end = min(block.end, num_computed_tokens - index * self.block_size)
                self.blocks[block_id] = KVBlock(block.writer, block.index, block.first, end)

    def finish_load(self, request_id: str, num_valid_tokens: int, writer: Writer) -> None:
        """Knows what a load has brought: KV of the first tokens of a request, in whole blocks."""
        load = self.loads.pop(request_id, None)
        if load is None:
            return
        self.loaded.add(request_id)
        first = load.start // self.block_size
        for index, block_id in enumerate(load.block_ids, first):
            if (index + 1) * self.block_size <= num_valid_tokens:
                self.blocks[block_id] = KVBlock(writer, index, 0, self.block_size)

    def preempt(self, request_ids: list[str]) -> None:
        """Ends a life: what is learnt from now on belongs to the next one."""
        for request_id in request_ids:
            self.writers.pop(request_id, None)

    def check_published(self, seen: Observation) -> Iterator[str]:
        """Yields the published blocks that no executed step wrote, or wrote for other tokens."""
        for block_id in seen.cached_block_ids:
            contents = seen.block_contents
            content = None if contents is None else contents.get(block_id)
            fault = self._fault_of_published(block_id, content)
            if fault is not None:
                yield f"block {block_id} is published, however {fault}"

    # ---- the diff --------------------------------------------------------------------------------

    def _forget(self, request_id: str) -> None:
        for book in (self.block_tables, self.num_computed_tokens, self.writers):
            book.pop(request_id, None)
        self.loaded.discard(request_id)

    def _follow_diff(
        self,
        output: SchedulerOutput,
        token_ids: dict[str, tuple[int, ...]],
        salts: dict[str, str | None],
        resumable: Container[str],
        report: WorkerReport,
    ) -> dict[str, int]:
        """Updates tables and counts; returns where each request's part of the step begins."""
        starts: dict[str, int] = {}
        for request_id, new in output.scheduled_new_reqs.items():
            if request_id in self.block_tables and request_id not in resumable:
                report.diff.append(f"{request_id} is sent as new, however the worker knows it")
            self.block_tables[request_id] = list(new.block_ids)
            starts[request_id] = new.num_computed_tokens
            known = token_ids.get(request_id, ())
            if new.prompt_token_ids != known:
                report.diff.append(f"{request_id} is sent with a prompt that is not its own")
            self.writers[request_id] = Writer(salts.get(request_id), known)
        for request_id, cached in output.scheduled_cached_reqs.items():
            if request_id not in self.block_tables:
                report.diff.append(
                    f"{request_id} is sent as cached, however the worker never saw it"
                )
                continue
            starts[request_id] = cached.num_computed_tokens
            if cached.resumed:
                self.block_tables[request_id] = list(cached.new_block_ids)
                self.writers[request_id] = Writer(
                    salts.get(request_id), token_ids.get(request_id, ())
                )
            else:
                self.block_tables[request_id] += cached.new_block_ids
                report.diff += self._faults_of_going_on(request_id, cached.num_computed_tokens)
        if set(starts) != set(output.num_scheduled_tokens):
            report.diff.append(
                f"the diff names {sorted(starts)}, "
                f"however scheduled are {sorted(output.num_scheduled_tokens)}"
            )
        for request_id, start in starts.items():
            num_tokens = start + output.num_scheduled_tokens.get(request_id, 0)
            self.num_computed_tokens[request_id] = num_tokens
            num_slots = len(self.block_tables[request_id]) * self.block_size
            if num_tokens > num_slots:
                report.diff.append(
                    f"{request_id} runs up to token {num_tokens}, "
                    f"however its block table has {num_slots} slots"
                )
        return starts

    def _faults_of_going_on(self, request_id: str, start: int) -> Iterator[str]:
        if request_id not in self.writers:
            yield f"{request_id} goes on after its preemption without being resumed"
        elif start != self.num_computed_tokens.get(request_id, 0):
            yield (
                f"{request_id} is told to go on at token {start}, the worker has computed "
                f"{self.num_computed_tokens.get(request_id, 0)}"
            )

    # ---- the KV cache ----------------------------------------------------------------------------

    def _begin_load(self, request_id: str, load: KVLoad) -> None:
        """What stood in the blocks of a load is gone, and what comes is not there yet."""
        self.loads[request_id] = load
        for block_id in load.block_ids:
            self.blocks.pop(block_id, None)

    def _write(self, request_id: str, start: int, num_tokens: int) -> Iterator[int]:
        """Writes KV for positions `[start, start + num_tokens)`; yields the blocks it goes to."""
        writer, table, size = (
            self.writers[request_id],
            self.block_tables[request_id],
            self.block_size,
        )
        position, end = start, start + num_tokens
        while position < end:
            index = position // size
            last = min(end, (index + 1) * size)
            written = KVBlock(writer, index, position % size, last - index * size)
            if not (request_id in self.loaded and self._is_there(table[index], written)):
                self._write_block(table[index], written)
                yield table[index]
            position = last
        self.loaded.discard(request_id)

    def _is_there(self, block_id: int, written: KVBlock) -> bool:
        """Whether a write leaves a block as it is, which holds the KV of the same tokens.

        So it is with the last token of a prompt all of which was loaded. It is computed again,
        though others may have hit its block by then.
        """
        block = self.blocks.get(block_id)
        return (
            block is not None
            and block.first <= written.first
            and self._holds(block, written.writer, written.index, written.end)
        )

    def _clashes(
        self, request_id: str, block_id: int, settled: list[str], written: dict[int, str]
    ) -> Iterator[str]:
        """Yields who else needs a block that was just written, or wrote it in the same step."""
        other = written.setdefault(block_id, request_id)
        if other != request_id:
            yield f"{request_id} and {other} both write block {block_id} in one step"
        for holder in settled:
            if holder != request_id and block_id in self.block_tables[holder]:
                yield f"{request_id} writes block {block_id}, which {holder} holds too"
        for holder, load in self.loads.items():
            if block_id in load.block_ids:
                yield f"{request_id} writes block {block_id}, into which KV of {holder} is loaded"

    def _write_block(self, block_id: int, written: KVBlock) -> None:
        """What is there of the same tokens stays; anything else in the block no longer counts."""
        old = self.blocks.get(block_id)
        end = written.index * self.block_size + written.first
        if (
            old is not None
            and old.index == written.index
            and old.end >= written.first
            and _agree(old.writer, written.writer, end)
        ):
            written.first = min(old.first, written.first)
        self.blocks[block_id] = written

    def _check_reads(self, request_id: str, start: int, report: WorkerReport) -> None:
        """All positions before `start` are read; each must hold KV of the request's own tokens."""
        writer, table, size = (
            self.writers[request_id],
            self.block_tables[request_id],
            self.block_size,
        )
        for index in range((start + size - 1) // size):
            num_needed = min(size, start - index * size)
            block = self.blocks.get(table[index])
            if not self._holds(block, writer, index, num_needed):
                report.reads.append(
                    f"{request_id} reads tokens {index * size} to {index * size + num_needed - 1} "
                    f"from block {table[index]}, which holds {describe(block, size)}"
                )
                return

    def _holds(self, block: KVBlock | None, writer: Writer, index: int, num_needed: int) -> bool:
        if block is None or block.index != index or block.first > 0 or block.end < num_needed:
            return False
        return _agree(block.writer, writer, index * self.block_size + num_needed)

    def _fault_of_published(self, block_id: int, content: BlockContent | None) -> str | None:
        block, size = self.blocks.get(block_id), self.block_size
        if block is None or block.first > 0 or block.end < size:
            return f"it holds {describe(block, size)}"
        end = (block.index + 1) * size
        written = block.writer.token_ids[:end]
        if len(written) < end:
            return f"only {len(written)} of the {end} tokens it stands for are known"
        if content is not None and content != (block.writer.cache_key, written):
            return f"it stands for tokens {content}, and holds the KV of {written}"
        return None


def _agree(a: Writer, b: Writer, end: int) -> bool:
    """Whether two lives have the same first `end` tokens, and so the same KV."""
    mine, theirs = a.token_ids[:end], b.token_ids[:end]
    return a is b or (len(mine) == end and mine == theirs and a.cache_key == b.cache_key)


def _is_resumed(output: SchedulerOutput, request_id: str) -> bool:
    cached = output.scheduled_cached_reqs.get(request_id)
    return cached is not None and cached.resumed


def describe(block: KVBlock | None, block_size: int) -> str:
    """Says what a block holds."""
    if block is None:
        return "nothing that a step wrote"
    start = block.index * block_size
    return f"only what was written for positions {start + block.first} to {start + block.end - 1}"
