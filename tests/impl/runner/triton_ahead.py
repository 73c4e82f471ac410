"""What the kernels become on a Hopper GPU, compiled ahead of time, as JSON: a program of its own.

No GPU is needed. A stand-in for the driver names the target, and each launch stops once its binary
is there; all else is the backend as it runs.
"""

from __future__ import annotations

import collections
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import triton
from attrs import asdict, define, field
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from impl.runner.ops.interface import AttentionBatch
from impl.runner.ops.triton.backend import TritonOps

TARGET = GPUTarget("cuda", 90, 32)
NUM_ROWS = (1, 2, 16, 17, 64, 300)
"""Batches that Triton would compile binaries of their own for, were it free to."""
ATTENTION = {
    torch.bfloat16: ((9, 3, 64), (32, 32, 64), (32, 8, 128), (4, 2, 16), (8, 1, 256)),
    torch.float32: ((9, 3, 64), (8, 1, 256)),
}
"""Query heads, KV heads and their width."""
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


class StandInDriver:
    """Says what a driver would say of a GPU."""

    def get_current_device(self):
        """The first GPU."""
        return 0

    def get_current_stream(self, device):
        """Its only stream."""
        return 0

    def get_current_target(self):
        """What to compile for."""
        return TARGET


@define
class Facts:
    """What one kernel became."""

    name: str
    dtype: str
    seconds: float
    num_binaries: int = 1
    """For all batches."""
    num_atomics: int = 0
    spilled_bytes: int = 0
    """Of the stack, per thread."""
    num_spills: int = 0
    """Loads and stores of spilled registers."""
    instructions: list[str] = field(factory=list)
    """The matrix instructions, less their sizes."""
    warps: list[str] = field(factory=list)
    """How warps share the tiles of matrix instructions: [rows, columns]."""
    num_barriers: int = 0


class Ahead:
    """Compiles what the backend launches, and keeps each binary once."""

    def __init__(self):
        self.binaries = {}
        """By case: hash to kernel, and how long the first took."""
        self.case = None
        triton.runtime.driver.set_active(StandInDriver())
        launch = JITFunction.run

        def compile_only(kernel, *arguments, grid, warmup, **options):
            begin = time.perf_counter()
            binary = launch(kernel, *arguments, grid=grid, warmup=True, **options)
            took = time.perf_counter() - begin
            self.binaries.setdefault(self.case, {}).setdefault(binary.hash, (binary, took))
            return binary

        JITFunction.run = compile_only

    def compile(self, name, dtype, compute):
        """Compiles one case for batches of all sizes; `compute` is given the number of rows."""
        self.case = name, str(dtype).removeprefix("torch.")
        for num_rows in NUM_ROWS:
            compute(num_rows)

    def look(self):
        """Returns the facts of all cases."""
        return [look_at(case, list(binaries.values())) for case, binaries in self.binaries.items()]


def look_at(case, binaries):
    """Reads the facts off the binaries of a case, as the assembly tells them."""
    facts = Facts(*case, seconds=round(sum(took for _, took in binaries), 2))
    facts.num_binaries = len(binaries)
    for binary, _ in binaries:
        sass, usage = dump(binary.asm["cubin"], "-sass"), dump(binary.asm["cubin"], "-res-usage")
        words = collections.Counter(re.findall(r"\b[A-Z][A-Z0-9]+\b", sass))
        facts.num_atomics += sum(words[word] for word in ("ATOM", "ATOMG", "ATOMS", "RED", "REDG"))
        facts.num_spills += words["STL"] + words["LDL"]
        facts.spilled_bytes += int(re.search(r"STACK:(\d+)", usage)[1])
        facts.num_barriers += words["BAR"]
        facts.instructions += [word for word in ("HGMMA", "HMMA") if words[word]]
        layouts = re.findall(r"#ttg\.nvidia_mma<\{.*?\}>", binary.asm["ttgir"])
        facts.warps += sorted({re.search(r"warpsPerCTA = (\[.*?\])", text)[1] for text in layouts})
    return facts


def dump(cubin, option):
    """Runs cuobjdump, which comes with Triton, on a binary."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(CUOBJDUMP), option, file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def compile_rows(ahead, dtype):
    """Compiles what works on rows: products of several shapes, norm, RoPE, SiLU."""
    ops = TritonOps(torch.device("cuda"), dtype)

    def make(*shape):
        return torch.empty(shape, dtype=dtype)

    for shape in ((64, 64), (960, 576), (16384, 2048), (2048, 8192)):
        ahead.compile(
            f"linear {shape}",
            dtype,
            lambda m, shape=shape: ops.linear(make(m, shape[1]), make(*shape), None),
        )
    weight, bias = make(960, 576), make(960)
    ahead.compile("linear with bias", dtype, lambda m: ops.linear(make(m, 576), weight, bias))
    ahead.compile("head", dtype, lambda m: ops.head(make(m, 576), weight))
    ahead.compile("rms_norm", dtype, lambda m: ops.rms_norm(make(m, 576), make(576), 1e-5))
    ahead.compile(
        "rope", dtype, lambda m: ops.rope(make(m, 15, 64)[:, :12], *torch.empty(2, m, 32))
    )
    ahead.compile("silu_mul", dtype, lambda m: ops.silu_mul(*make(m, 3072).chunk(2, -1)))


def compile_attention(ahead, dtype):
    """Compiles attention for models of several shapes."""
    ops = TritonOps(torch.device("cuda"), dtype)
    for num_heads, num_kv_heads, head_dim in ATTENTION[dtype]:
        cache = torch.empty(4, 16, num_kv_heads, head_dim, dtype=dtype)

        def attend(num_tokens, cache=cache, heads=num_heads, head_dim=head_dim):
            owners = torch.arange(num_tokens, dtype=torch.int32) // 2
            tables = torch.zeros(num_tokens, num_tokens, dtype=torch.int32)
            batch = AttentionBatch(tables, owners, torch.zeros_like(owners))
            query = torch.empty(num_tokens, heads, head_dim, dtype=dtype)
            ops.paged_attention(query, cache, cache, batch)

        ahead.compile(f"attention {num_heads}/{num_kv_heads} x {head_dim}", dtype, attend)


if __name__ == "__main__":
    compiler = Ahead()
    for each_dtype in ATTENTION:
        compile_rows(compiler, each_dtype)
        compile_attention(compiler, each_dtype)
    sys.stdout.write(json.dumps([asdict(facts) for facts in compiler.look()]))
