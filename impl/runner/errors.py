"""What goes wrong in a runner: a model that it cannot run, or a step that it cannot follow."""

from __future__ import annotations


class RunnerError(ValueError):
    """A model, a file or a step that makes no sense; the message names it and the way out."""
