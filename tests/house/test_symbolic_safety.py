from __future__ import annotations

import pytest

from tests.house.source import ROOT, parse
from tests.house.symbolic_safety import (
    CONCRETE,
    NO_STEP_FILES,
    SAFE,
    STEP_FILES,
    breaches,
    imported_files,
    names_of,
    step_functions,
    used_exceptions,
)

RULE = "class ReferenceScheduler:\n    def _rule(self):\n        "


@pytest.mark.parametrize("path", STEP_FILES)
def test_step_code_can_run_on_symbols(path):
    """No step code says what a symbol would pass through wrongly."""
    assert breaches(path, (ROOT / path).read_text()) == []


@pytest.mark.parametrize(
    "statement",
    [
        "return isinstance(self.token_budget, int)",
        "return int(self.token_budget)",
        "return float(self.token_budget)",
        "return bool(self.token_budget)",
        "return str(self.token_budget)",
        "return hash(self.token_budget)",
        "for index in range(self.token_budget): self._f(index)",
        "return any(r.num_blocks > 0 for r in self.running)",
        "return all(r.num_blocks > 0 for r in self.running)",
        "return sum(r.num_blocks for r in self.running)",
        "return sorted(self.running)",
        "return set(self.running)",
        "return {self.token_budget}",
        "return {r.num_blocks for r in self.running}",
        "return {r.num_blocks: r for r in self.running}",
        "return {self.token_budget: 1}",
        "return self.hit is None",
        "return self.status is not self.other",
        "return f'{self.token_budget}'",
        "match self.token_budget:\n            case 0: return True",
        "while self.token_budget > 0: self.token_budget -= 1",
        "while self._next(): self._f()",
        "if self.token_budget: self._f()",
        "return not self.running",
        "return self.token_budget > 0 and self.running",
        "return 1 if self.running else 0",
        "return [r for r in self.running if r.num_blocks]",
        "assert self.running",
        "self.carried = []",
        "carried: dict[str, int] = {}",
    ],
)
def test_what_a_symbol_would_pass_through_wrongly_is_found(statement):
    """The lint can fail: each of these statements is a breach."""
    assert len(breaches("spec/scheduler.py", RULE + statement)) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "while self._next(): pass",
        "while self._preempt_next_for(request, num_tokens): pass",
        "for request in self.running: self._reserve(request)",
        "return len(self.running) == 0 and not self.config.async_scheduling",
        "return self._may_admit() and not self.waiting.is_empty()",
        "return min(self.token_budget, self.input_budget)",
        "if request.request_id in self.requests: self._f()",
        "return 1 if is_stale else 0",
        "return 0 <= self.token_budget < 10",
    ],
)
def test_what_a_symbol_passes_through_rightly_is_allowed(statement):
    """The lint leaves plain step code alone."""
    assert breaches("spec/scheduler.py", RULE + statement) == []


def test_every_function_of_the_step_is_step_code():
    """The rules, gates and effects are looked at, and so are functions that are added later."""
    path = "spec/scheduler.py"
    source = (ROOT / path).read_text() + "\n\ndef added_later():\n    pass\n"
    names = {name for name, _ in step_functions(path, source)}
    expected = {
        "ReferenceScheduler.schedule",
        "ReferenceScheduler._begin_step",
        "ReferenceScheduler._schedule_next_running",
        "ReferenceScheduler._admit_next_waiting",
        "added_later",
    }
    assert expected <= names


def test_what_step_code_imports_is_looked_at():
    """No file lies on the path of a step unseen: a new one is step code, or says why it is not."""
    imported = {"spec/scheduler.py"}
    for path in STEP_FILES:
        imported |= imported_files(parse(ROOT / path))
    assert imported == set(STEP_FILES) | set(NO_STEP_FILES)


def test_every_safe_place_is_needed():
    """An exception that nothing needs any more is removed."""
    needed = set()
    for path in STEP_FILES:
        needed |= used_exceptions(path, (ROOT / path).read_text())
    assert set(SAFE) == needed


def test_every_concrete_function_exists():
    """What is excepted from the step code is there, and says why it is."""
    for path, names in CONCRETE.items():
        assert set(names) - names_of(path) == set()
        assert all(names.values())
