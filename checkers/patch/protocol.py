"""What is said between the command and the two processes that run an engine.

A request is one JSON line: `id`, `verb`, arguments. Answers are JSON lines with the same `id`:
any number of `at` (what is begun now) and `walk`, then one of `done`, `refused` (an input that
makes no sense) and `bug` (of ours).
"""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from checkers.configs import Setting
from checkers.counterexample import CONVERTER
from checkers.mixed import draw_setting
from checkers.patch.conditions import Conditions
from checkers.patch.operands import Operand
from spec.actions import Action

MEMORY_EXIT_CODE = 77
"""How a process ends whose memory is used up outside of the engine's own calls."""


@frozen(kw_only=True)
class Job:
    """What both processes are told at first."""

    engine: str
    settings: tuple[Setting, ...]
    seed: int = 0
    num_walks: int = 0
    """Per setting; 0 is as many as there is time for."""
    num_mixed: int = 0
    """Settings drawn at random that each round walks in, once in each."""
    length: int = 150
    """Actions in a walk."""
    lockstep: bool = True
    engine_timeout: float = 2.0
    memory_mib: int = 2048
    """Of address space; 0 is no limit."""
    folder: str = ""
    """Where the engine must come from."""
    root: str = ""
    """The checkout, for what the engine imports beside its package."""
    lines: dict[str, list[int]] = field(factory=dict)
    """What is to be reached, by file."""
    operands: dict[str, list[Operand]] = field(factory=dict)
    """What is to be something while its line runs, by file."""
    conditions: Conditions = field(factory=dict)
    """What is to go both ways."""

    def setting(self, place: int) -> Setting:
        """A setting by its place: behind those that are named are those drawn at random."""
        number = place - len(self.settings)
        return self.settings[place] if number < 0 else draw_setting(self.seed, number)

    def places_drawn(self, number: int) -> range:
        """The places of those settings that are for one round."""
        start = len(self.settings) + number * self.num_mixed
        return range(start, start + self.num_mixed)


@frozen(kw_only=True)
class RunReport:
    """A run, and whether it broke a rule."""

    setting: int
    """Its place in the job."""
    number: int | None = None
    """Of the walk; None for a run that was found breadth first."""
    num_actions: int = 0
    digest: str = ""
    """Of all that the engine decided."""
    is_cut: bool = False
    """Whether the time was over before its end."""
    breaches: tuple[str, ...] = ()
    """The rules that its last action breaks, the first one first."""
    actions: tuple[Action, ...] = ()
    """Of a failing run."""
    moody: str = ""
    """Why it cannot be repeated."""
    is_touching: bool = False
    """Whether it ran a changed line with all that this works with; only of a watched walk."""


@frozen(kw_only=True)
class Led:
    """How an engine was led along the states of the specification."""

    num_states: int
    is_complete: bool
    failing: RunReport | None


@frozen(kw_only=True)
class Attempt:
    """What came of some actions."""

    actions: tuple[Action, ...]
    """Those that could happen."""
    breaches: tuple[str, ...]
    answers: tuple[str, ...]
    """A digest of what the engine decided, for each action that it answered."""


def pack(value: Any) -> Any:
    """A value of ours as JSON takes it."""
    return CONVERTER.unstructure(value)


def unpack(raw: Any, kind: Any) -> Any:
    """The value again."""
    return CONVERTER.structure(raw, kind)


def pack_actions(actions: tuple[Action, ...]) -> Any:
    """Actions as JSON takes them."""
    return [CONVERTER.unstructure(action, unstructure_as=Action) for action in actions]


def unpack_actions(raw: Any) -> tuple[Action, ...]:
    """The actions again."""
    return tuple(CONVERTER.structure(raw, list[Action]))
