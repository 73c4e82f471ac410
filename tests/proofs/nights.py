"""Tests that take minutes run at night: with HYPOTHESIS_PROFILE=deep."""

from __future__ import annotations

import pytest
from hypothesis import settings

at_night = pytest.mark.skipif(
    settings.get_current_profile_name() != "deep",
    reason="takes minutes; HYPOTHESIS_PROFILE=deep runs it",
)
