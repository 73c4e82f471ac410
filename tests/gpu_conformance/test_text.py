from __future__ import annotations

from pathlib import Path

import pytest

from checkers.errors import HarnessError
from gpu_conformance.text import BYTES, CHARACTERS, Tokenizer, read_tokenizer
from tests.impl.runner.test_loading import write_gguf

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


def test_what_is_no_text_is_refused():
    """Bytes that a command line could not read as UTF-8 have no tokens."""
    with pytest.raises(HarnessError, match=r"'a\\udcff' is no text"):
        TOKENIZER.encode("a\udcff")


@pytest.mark.parametrize(
    ("cut", "message"),
    [(None, "has no tokenizer.ggml.model, and so no tokenizer"), (-100, "ends too early")],
)
def test_a_file_without_a_whole_tokenizer_is_refused(tmp_path, cut, message):
    """What a GGUF file lacks is told, be it a field or its end."""
    path = Path(write_gguf(tmp_path / "model.gguf", "tiny"))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(HarnessError, match=message):
        read_tokenizer(str(path))


def test_a_model_without_a_tokenizer_is_refused():
    """A tiny model has random weights and no words."""
    with pytest.raises(HarnessError, match="tiny is no GGUF file"):
        read_tokenizer("tiny")
