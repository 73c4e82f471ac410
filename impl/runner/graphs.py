"""Steps of a few fixed sizes, recorded once on a GPU and played back: CUDA graphs.

Entry point: `use_graphs`. A step is filled up with padding to the next of the sizes. On a CPU
there is nothing to record, and all the rest is the same, padding included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from attrs import frozen

from impl.runner.kv_cache import KVCache
from impl.runner.model import Model, see_nothing
from impl.runner.model_runner import ModelRunner
from impl.runner.ops.interface import AttentionBatch

Tensor = torch.Tensor

Compute = Callable[[], Tensor]
Record = Callable[[Compute], Compute]
"""Returns what computes again whatever a function computed, from the tensors that it read."""

DEFAULT_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def use_graphs(runner: ModelRunner, sizes: tuple[int, ...] = DEFAULT_SIZES) -> None:
    """Lets a runner compute steps of at most max(sizes) tokens in padded batches from now on."""
    record = record_cuda if runner.ops.device.type == "cuda" else record_nothing
    runner.model = GraphedModel(runner.model, runner.kv_cache, sizes, record)


class GraphedModel(Model):
    """A model that computes small steps in batches of fixed sizes, recorded when first needed.

    It does not where somebody looks at each layer, since a recording shows nothing. Where nothing
    is recorded, whoever looks is shown the rows of the step without the padding.
    """

    def __init__(
        self, model: Model, kv_cache: KVCache, sizes: tuple[int, ...], record: Record
    ) -> None:
        super().__init__(model.config, model.weights, model.ops)
        self.see = model.see
        self.kv_cache = kv_cache
        self.sizes = sorted(sizes)
        max_num_tokens = min(
            model.config.max_position_embeddings, kv_cache.num_blocks * kv_cache.block_size
        )
        self.max_blocks = -(-max_num_tokens // kv_cache.block_size)
        self._record = record
        self._graphs: dict[int, Graph] = {}

    def forward(
        self, token_ids: Tensor, slots: Tensor, attention: AttentionBatch, kv_cache: KVCache
    ) -> Tensor:
        """Computes the tokens of a step, and stores their KV: [n] -> [n, hidden_size]."""
        size = next((size for size in self.sizes if size >= len(token_ids)), None)
        fits = attention.block_tables.shape[1] <= self.max_blocks and kv_cache is self.kv_cache
        is_hidden = self._record is not record_nothing and self.see is not see_nothing
        if size is None or not fits or is_hidden:
            return super().forward(token_ids, slots, attention, kv_cache)
        if size not in self._graphs:
            self._graphs[size] = self._make_graph(size)
        graph = self._graphs[size]
        graph.inputs.fill(token_ids, slots, attention)
        with self._showing(len(token_ids)):
            return graph.compute()[: len(token_ids)]

    @contextmanager
    def _showing(self, num_tokens: int) -> Iterator[None]:
        """Shows the first rows only to whoever looks, for as long as the block lasts."""
        see = self.see
        self.see = lambda layer, stage, rows: see(layer, stage, rows[:num_tokens])
        try:
            yield
        finally:
            self.see = see

    def _make_graph(self, size: int) -> Graph:
        """Records a step all of padding."""
        inputs = make_inputs(size, self.max_blocks, self.ops.device)

        def compute() -> Tensor:
            return super(GraphedModel, self).forward(
                inputs.token_ids, inputs.slots, inputs.make_attention(), self.kv_cache
            )

        return Graph(inputs, self._record(compute))


@frozen(eq=False)
class Inputs:
    """Where a recording reads its step from.

    Each token of padding is the first of a request of its own, whose only block is 0, the null
    block. Its KV goes there, too, where no request looks.
    """

    token_ids: Tensor
    """[size], int64"""
    slots: Tensor
    """[size], int64"""
    block_tables: Tensor
    """[size, max_blocks], int32"""
    request_of_token: Tensor
    """[size], int32"""
    positions: Tensor
    """[size], int32"""

    def fill(self, token_ids: Tensor, slots: Tensor, attention: AttentionBatch) -> None:
        """Copies a step of at most `size` tokens, and fills up with padding."""
        num_tokens = len(token_ids)
        num_reqs, max_blocks = attention.block_tables.shape
        self.clear()
        self.token_ids[:num_tokens] = token_ids
        self.slots[:num_tokens] = slots
        self.block_tables[:num_reqs, :max_blocks] = attention.block_tables
        self.request_of_token[:num_tokens] = attention.request_of_token
        self.positions[:num_tokens] = attention.positions

    def clear(self) -> None:
        """Leaves nothing but padding."""
        for tensor in (self.token_ids, self.slots, self.block_tables, self.positions):
            tensor.zero_()
        # There are no more requests than tokens, so these rows of the block tables are free.
        torch.arange(len(self.request_of_token), out=self.request_of_token)

    def make_attention(self) -> AttentionBatch:
        """Builds a batch anew, so that what a backend works out from it is recorded, too."""
        return AttentionBatch(
            block_tables=self.block_tables,
            request_of_token=self.request_of_token,
            positions=self.positions,
        )


def make_inputs(size: int, max_blocks: int, device: torch.device) -> Inputs:
    """Makes room for a step of a size, all padding."""

    def make(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    inputs = Inputs(
        token_ids=make(size, dtype=torch.int64),
        slots=make(size, dtype=torch.int64),
        block_tables=make(size, max_blocks, dtype=torch.int32),
        request_of_token=make(size, dtype=torch.int32),
        positions=make(size, dtype=torch.int32),
    )
    inputs.clear()
    return inputs


@frozen(eq=False)
class Graph:
    """One recorded size."""

    inputs: Inputs
    compute: Compute
    """Returns [size, hidden_size], which the next call overwrites."""


def record_nothing(compute: Compute) -> Compute:
    """Computes anew each time."""
    return compute


def record_cuda(compute: Compute) -> Compute:
    """Records what a function launches on the GPU, and returns what launches it again."""
    # Compiling, and the first call of a library, must not be recorded.
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        compute()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = compute()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay
