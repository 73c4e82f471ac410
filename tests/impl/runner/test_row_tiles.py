"""Tiles of rows: which heights are used, and that a row does not feel its company."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from impl.runner.ops.row_tiles import BASE_HEIGHT, HEIGHTS, RowTiles

SHAPES = [(64, 64), (96, 64), (64, 100), (512, 96), (37, 64), (100, 37)]


def make_operands(num_inputs, num_outputs, num_rows=300):
    """Random rows, a weight and a bias."""
    generator = torch.Generator().manual_seed(num_inputs + num_outputs)
    return (
        torch.randn(num_rows, num_inputs, generator=generator),
        torch.randn(num_outputs, num_inputs, generator=generator),
        torch.randn(num_outputs, generator=generator),
    )


@pytest.mark.parametrize(("num_inputs", "num_outputs"), SHAPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_row_has_its_bits_in_any_company(num_inputs, num_outputs, has_bias):
    """A row comes to the same, bit for bit, with any number of rows, wherever it stands."""
    x, weight, bias = make_operands(num_inputs, num_outputs)
    given = bias if has_bias else None
    tiles = RowTiles()
    expected = tiles.multiply(x, weight, given)
    assert torch.allclose(expected, functional.linear(x, weight, given), atol=1e-3)
    parts = [(0, 1), (7, 8), (3, 5), (1, 16), (0, 17), (40, 73), (5, 300), (299, 300)]
    differing = [
        part
        for part in parts
        if not torch.equal(tiles.multiply(x[slice(*part)], weight, given), expected[slice(*part)])
    ]
    assert differing == []


class FeelsHeight:
    """Multiplies such that a row feels how high its tile is, except for some heights."""

    def __init__(self, agreeing=()):
        self.agreeing = agreeing
        self.heights = set()

    def __call__(self, x, weight, bias):
        """Multiplies, and notes the height."""
        self.heights.add(len(x))
        error = 0 if len(x) in self.agreeing else len(x)
        return functional.linear(x.double(), weight.double()).float() + error


def test_only_heights_that_agree_are_used():
    """Heights that give other bits than the base are left out, so that no row feels its company."""
    x, weight, _ = make_operands(8, 8, 100)
    multiply = FeelsHeight(agreeing=(4, 16, 64))
    tiles = RowTiles(multiply)
    for num_rows in (1, 3, 15, 16, 40, 100):
        tiles.multiply(x[:num_rows], weight)
    multiply.heights.clear()
    results = [tiles.multiply(x[:num_rows], weight)[:1] for num_rows in (1, 3, 15, 16, 40, 100)]
    assert {4, 16, 64} == multiply.heights
    assert all(torch.equal(results[0], result) for result in results)


def test_without_another_height_the_base_is_used():
    """Where nothing agrees with the base height, all tiles have that."""
    x, weight, _ = make_operands(8, 8, 100)
    multiply = FeelsHeight()
    tiles = RowTiles(multiply)
    tiles.multiply(x, weight)
    multiply.heights.clear()
    tiles.multiply(x, weight)
    assert {BASE_HEIGHT} == multiply.heights


def test_rows_that_feel_their_place_are_alone():
    """If a row feels where it stands even in the base, each is multiplied by itself."""
    x, weight, _ = make_operands(8, 8, 20)

    def multiply(rows, weight, bias):
        places = torch.arange(len(rows))[:, None]
        return functional.linear(rows.double(), weight.double()).float() + places

    actual = RowTiles(multiply).multiply(x, weight)
    expected = functional.linear(x.double(), weight.double()).float()
    assert torch.equal(expected, actual)


def test_a_height_is_tried_once():
    """What a shape allows is found out once, and then remembered."""
    x, weight, _ = make_operands(8, 8, max(HEIGHTS))
    calls = []

    def multiply(rows, weight, bias):
        calls.append(len(rows))
        return functional.linear(rows, weight, bias)

    tiles = RowTiles(multiply)
    tiles.multiply(x, weight)
    calls.clear()
    tiles.multiply(x, weight)
    assert max(HEIGHTS) == sum(calls)
