"""Small requests for the tests of the parts."""

from __future__ import annotations

from typing import Any

from impl.request import Request, make_request
from spec.interface import NewRequest

MAX_MODEL_LEN = 100


def build(request_id: str = "A", prompt: tuple[int, ...] = (0, 0, 0), **given: Any) -> Request:
    """Builds a request; what is not given has a harmless value."""
    fields = {"max_tokens": 50, **given}
    new = NewRequest(request_id=request_id, prompt_token_ids=prompt, **fields)
    return make_request(new, MAX_MODEL_LEN)


def append(request: Request, *token_ids: int) -> None:
    """Makes output tokens known."""
    request.token_ids.extend(token_ids)
    request.num_tokens += len(token_ids)
