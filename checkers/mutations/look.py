"""What was seen of an engine, with a bug or without."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class Look:
    """What a checker makes of an engine."""

    broken: tuple[str, ...] = ()
    """The rules that the last step of the run breaks; none if no run was found."""
    num_actions: int = 0
    """In the run, which is shrunk where a bug's own checker looks; of a loop, the way in and the
    loop once."""
    line: int = 0
    """Of the recording, where that is rejected; its first line is 1."""
    lines: tuple[str, ...] = ()
    """The run as a table, and its evidence."""
    looked_at: str = ""
    """How much there was to see nothing in."""
    unfit: str = ""
    """Why the checker cannot look at runs of the setting."""
    cpu_s: float = 0.0
