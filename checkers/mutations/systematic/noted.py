"""Mutants that nobody notices, each with the reason why nobody could.

Entry points: `NOTED` and `NOT_RUN`. A mutant that stands here and is killed, or is not there any
more, is an error: what is noted must be true.
"""

from __future__ import annotations

NOT_RUN: dict[str, str] = {}
"""Functions that no scheduler calls, by file and qualified name: who calls them instead."""

NOTED: dict[str, str] = {}
"""By the name of the mutant: why it changes nothing that can be seen."""


def find_reason(function: str, name: str) -> str:
    """Why a mutant of a function need not be noticed; "" if it must be."""
    return NOT_RUN.get(function, "") or NOTED.get(name, "")
