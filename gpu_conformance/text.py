"""Text for a model that brings its tokenizer: byte-level BPE out of a GGUF file.

Entry point: `read_tokenizer`. It is for prompts of a demonstration: letters, digits, marks and
spaces are cut as GPT-2 does, digits one by one, as SmolLM2 does.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from attrs import field, frozen

from checkers.errors import HarnessError
from impl.runner.errors import RunnerError
from impl.runner.gguf_file import open_file

# What a merge never crosses (llama.cpp, src/llama-vocab.cpp: LLAMA_VOCAB_PRE_TYPE_SMOLLM).
PIECE = re.compile(r"'(?:s|t|re|ve|m|ll|d)|\d| ?[^\W\d_]+| ?[^\s\w]+|\s+(?!\S)|\s+")

FIELDS = ("tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.merges")
"""What a file says of its tokenizer: its kind, its tokens, and which are joined."""


@frozen
class Tokenizer:
    """Text to tokens and back."""

    tokens: list[str]
    """By number; bytes are written as printable characters."""
    ranks: dict[tuple[str, str], int]
    """Which two pieces are joined first."""
    special: tuple[str, ...]
    """Tokens that stand for themselves, as <|im_start|>."""
    ids: dict[str, int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "ids", {token: number for number, token in enumerate(self.tokens)})

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text. Raises `HarnessError` for what is none."""
        try:
            text.encode()
        except UnicodeEncodeError as fault:
            raise HarnessError(f"{text!r} is no text: {fault.reason}") from fault
        pattern = "|".join(map(re.escape, self.special))
        token_ids: list[int] = []
        for part in re.split(f"({pattern})", text):
            if part in self.special:
                token_ids.append(self.ids[part])
            else:
                for piece in PIECE.findall(part):
                    token_ids += [self.ids[joined] for joined in self._join(piece)]
        return token_ids

    def decode(self, token_ids: list[int]) -> str:
        """Returns the text of tokens."""
        text = "".join(self.tokens[token_id] for token_id in token_ids)
        return bytes(BYTES[character] for character in text).decode(errors="replace")

    def _join(self, piece: str) -> list[str]:
        """Joins the bytes of a piece, two neighbours at a time, the lowest rank first."""
        parts = [CHARACTERS[byte] for byte in piece.encode()]
        while len(parts) > 1:
            pairs = list(itertools.pairwise(parts))
            best = min(pairs, key=lambda pair: self.ranks.get(pair, len(self.ranks)))
            if best not in self.ranks:
                break
            place = pairs.index(best)
            parts[place : place + 2] = ["".join(best)]
        return parts


def _make_characters() -> dict[int, str]:
    """Which character stands for a byte: itself if it can be printed, else one past them all."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    written = {byte: chr(byte) for byte in printable}
    return written | {byte: chr(256 + place) for place, byte in enumerate(others)}


CHARACTERS = _make_characters()
BYTES = {character: byte for byte, character in CHARACTERS.items()}


def read_tokenizer(path: str) -> Tokenizer:
    """Reads the tokenizer of a GGUF file. Raises `HarnessError` if it is of another kind."""
    if not Path(path).is_file():
        raise HarnessError(
            f"{path} is no GGUF file; only those bring a tokenizer that is read here"
        )
    try:
        fields = open_file(Path(path)).fields
    except (RunnerError, ImportError, OSError) as error:
        raise HarnessError(str(error)) from error
    missing = next((name for name in FIELDS if name not in fields), None)
    if missing is not None:
        raise HarnessError(f"{path} has no {missing}, and so no tokenizer; leave out --prompt")
    kind, tokens, merges = (fields[name].contents() for name in FIELDS)
    if kind != "gpt2":
        raise HarnessError(f"{path} has a tokenizer of the kind {kind}; only gpt2 is read here")
    pairs = [tuple(merge.split(" ")) for merge in merges]
    special = tuple(token for token in tokens if re.fullmatch(r"<\|\w+\|>", token))
    return Tokenizer(tokens, {(a, b): rank for rank, (a, b) in enumerate(pairs)}, special)
