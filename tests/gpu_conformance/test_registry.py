from __future__ import annotations

import pytest

import gpu_conformance.axes  # noqa: F401  (registers)
from gpu_conformance.bugs import registry as bugs
from gpu_conformance.registry import AXES, axis
from gpu_conformance.way import make_way
from gpu_conformance.work import WORKS, make_requests

WAY = make_way(make_requests(WORKS["tiny"]))


@pytest.fixture
def no_axes(monkeypatch):
    """Registers into nothing."""
    monkeypatch.setattr("gpu_conformance.registry.AXES", {})


def always(seen, value):
    """Every value is reached."""
    return True


def register(*, doc="Something is varied.", **given):
    """Registers an axis that does nothing."""

    def some_axis(way, value):
        return way

    some_axis.__doc__ = doc
    values = {"baseline": 0, "values": (1, 2), "is_reached": always}
    return axis(**{**values, **given})(some_axis)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"doc": None}, "has no docstring"),
        ({"values": (1, 1)}, "lists a value twice"),
        ({"values": (0, 1)}, "lists a value twice, or its baseline"),
        ({"few": (3,)}, r"lists few=\(3,\), not all of them values"),
    ],
)
def test_an_axis_that_makes_no_sense_is_refused(no_axes, given, message):
    """An axis needs a docstring, and values that differ from each other and from the baseline."""
    with pytest.raises(ValueError, match=message):
        register(**given)


def test_two_axes_have_two_names(no_axes):
    """A name is given once."""
    register()
    with pytest.raises(ValueError, match="some_axis is registered twice"):
        register()


@pytest.mark.parametrize("name", AXES)
def test_the_baseline_changes_nothing(name):
    """At its baseline an axis leaves the plain way as it is."""
    assert WAY == AXES[name].apply(WAY, AXES[name].baseline)


@pytest.mark.parametrize("name", sorted(set(AXES) - {"graph_bucket", "recorded_run"}))
def test_a_value_changes_something(name):
    """At its first value an axis changes the plain way."""
    assert WAY != AXES[name].apply(WAY, AXES[name].values[0])


def test_a_bug_without_a_docstring_is_refused(monkeypatch):
    """What a bug does wrong is said in its docstring, and its name is given once."""
    monkeypatch.setattr(bugs, "BUGS", {})

    def some_bug(original):
        return original

    register_bug = bugs.bug(target="a:b", axis="batch_size", value=2)
    with pytest.raises(ValueError, match="some_bug has no docstring"):
        register_bug(some_bug)
    some_bug.__doc__ = "Something is wrong."
    register_bug(some_bug)
    with pytest.raises(ValueError, match="some_bug is registered twice"):
        register_bug(some_bug)
