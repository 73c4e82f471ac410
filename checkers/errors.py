"""Faults of ours and of our input: a finding is returned, these are raised."""

from __future__ import annotations


class HarnessError(Exception):
    """The harness cannot do its work. The message says what, where, and the way out."""


class EngineFault(Exception):  # noqa: N818  (not an error of the harness: it becomes a finding)
    """An engine under test raised, hung, or answered with something that is no answer.

    Turned into a finding where the run is known.
    """

    def __init__(self, name: str, evidence: str, traceback: str = "") -> None:
        super().__init__(evidence)
        self.name = name
        """"engine_raises", "engine_hangs" or "engine_answers"."""
        self.evidence = evidence
        self.traceback = traceback
