from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Every test of the runner has one thread, unless it says otherwise."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture
def two_threads():
    """For tests that say otherwise."""
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)
