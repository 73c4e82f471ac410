"""The options of the suite as plain pytest: `pytest gpu_conformance --device cpu`."""

from __future__ import annotations

import pytest

from checkers.errors import HarnessError
from gpu_conformance.bench import Bench
from gpu_conformance.command import (
    Order,
    check_order,
    choose_axes,
    choose_subjects,
    choose_values,
    make_bench,
)
from gpu_conformance.subject import is_control, is_slow


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of `schedcheck conform`."""
    group = parser.getgroup("conformance")
    group.addoption("--device", default="cpu", help="cpu, cuda or cuda:1")
    group.addoption("--model", default="tiny", help="a folder, a GGUF file, or a tiny model")
    for name, what in (("backend", "tile, exact, triton or plain"), ("axis", "NAME[=VALUE]")):
        group.addoption(f"--{name}", action="append", default=[], help=f"{what}; may be repeated")


def pytest_configure(config: pytest.Config) -> None:
    """Refuses at once what cannot be had: a device, a backend, an axis, a value."""
    order = get_order(config)
    try:
        pairs, _ = choose_subjects(order)
        check_order(order, choose_axes(order.axes), pairs)
    except HarnessError as error:
        raise pytest.UsageError(str(error)) from error


def get_order(config: pytest.Config) -> Order:
    """What is asked for on pytest's command line."""
    return Order(
        model=config.getoption("--model"),
        device=config.getoption("--device"),
        backends=tuple(config.getoption("--backend")),
        axes=tuple(config.getoption("--axis")),
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes a test of each value of each axis, for each backend and number type."""
    if "pair" not in metafunc.fixturenames:
        return
    order = get_order(metafunc.config)
    pairs, _ = choose_subjects(order)
    if "control" in metafunc.fixturenames:
        pairs = [pair for pair in pairs if is_control(pair[0])]
    if "axis" not in metafunc.fixturenames:
        metafunc.parametrize("pair", pairs, ids=["-".join(pair) for pair in pairs])
        return
    cases = [
        pytest.param(pair, axis, value, id=f"{axis.name}-{value}-{'-'.join(pair)}")
        for pair in pairs
        if not is_control(pair[0])
        for axis, values in choose_axes(order.axes)
        for value in choose_values(axis, values, is_slow(pair[0], order.device))
    ]
    metafunc.parametrize(("pair", "axis", "value"), cases)


@pytest.fixture(scope="session")
def benches() -> dict[tuple[str, str], Bench]:
    """What was put under test so far, with what each request computes alone."""
    return {}


@pytest.fixture
def bench(
    pair: tuple[str, str], benches: dict[tuple[str, str], Bench], pytestconfig: pytest.Config
) -> Bench:
    """A backend and a number type under test."""
    if pair not in benches:
        try:
            benches[pair] = make_bench(get_order(pytestconfig), *pair)
        except HarnessError as error:
            # No test can pass or fail with a model that is not there.
            pytest.exit(str(error), pytest.ExitCode.USAGE_ERROR)
    return benches[pair]


@pytest.fixture
def control(bench: Bench) -> Bench:
    """A backend that must fail."""
    return bench
