from __future__ import annotations

import pytest

from checkers.planting import planted_at


class Right:
    """Answers rightly."""

    def answer(self):
        """Answers."""
        return "right"


class Heir(Right):
    """Inherits its answer."""


def answer():
    """Answers rightly, too."""
    return "right"


def ask_function():
    """Asks what stands under the name now."""
    return answer()


def wrong(original):
    """A version that answers wrongly."""
    return lambda *arguments: f"not {original(*arguments)}"


@pytest.mark.parametrize(
    ("target", "ask"),
    [
        ("Right.answer", lambda: Right().answer()),
        ("Heir.answer", lambda: Heir().answer()),
        ("answer", ask_function),
    ],
)
def test_a_method_is_wrong_for_a_while(target, ask):
    """In the block the wrong version answers, made of the right one; afterwards the right one."""
    before = dict(vars(Right)), dict(vars(Heir))
    with planted_at(f"{__name__}:{target}", wrong):
        assert "not right" == ask()
    with pytest.raises(ZeroDivisionError), planted_at(f"{__name__}:{target}", wrong):
        raise ZeroDivisionError
    assert "right" == ask()
    assert before == (dict(vars(Right)), dict(vars(Heir)))
