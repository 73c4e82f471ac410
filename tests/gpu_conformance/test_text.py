from __future__ import annotations

import pytest

from checkers.errors import HarnessError
from gpu_conformance.text import BYTES, CHARACTERS, Tokenizer, read_tokenizer

JOINED = ["an", "ana", "Ġb", "<|end|>"]
TOKENS = [*CHARACTERS.values(), *JOINED]
MERGES = [("a", "n"), ("an", "a"), ("Ġ", "b")]
TOKENIZER = Tokenizer(TOKENS, {pair: rank for rank, pair in enumerate(MERGES)}, ("<|end|>",))


def pieces(text):
    """The tokens of a text, as they are written."""
    return [TOKENS[token_id] for token_id in TOKENIZER.encode(text)]


def test_the_lowest_rank_is_joined_first():
    """Neighbours are joined by rank, not by place; a space belongs to the word behind it."""
    assert ["b", "an", "ana", "Ġb", "an"] == pieces("banana ban")


def test_digits_stand_alone_and_special_tokens_for_themselves():
    """No merge joins digits, and a special token is not taken apart."""
    assert ["1", "2", "<|end|>", "an"] == pieces("12<|end|>an")


@pytest.mark.parametrize("text", ["banana", "é ☃", "a\nb\t c", "don't <|end|>"])
def test_a_text_comes_back(text):
    """What is encoded can be decoded, whatever its characters."""
    assert text == TOKENIZER.decode(TOKENIZER.encode(text))


def test_every_byte_has_a_character_of_its_own():
    """256 bytes are written as 256 characters."""
    assert (256, 256) == (len(CHARACTERS), len(BYTES))


def test_a_model_without_a_tokenizer_is_refused():
    """A tiny model has random weights and no words."""
    with pytest.raises(HarnessError, match="tiny is no GGUF file"):
        read_tokenizer("tiny")
