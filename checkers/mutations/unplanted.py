"""Public bugs that are not planted in our engine, and why not."""

from __future__ import annotations

_NO_ENCODER = "our engine has no encoder, so there is no encoder cache that could fill up"
_ONE_GROUP = "all layers share one block table, full attention, so no window or group can differ"

UNPLANTED: dict[str, str] = {
    "vLLM #45138": (
        "a load ends before its request is scheduled, so whoever loses KV has no placeholder "
        "that could be stranded"
    ),
    "vLLM #31857": _NO_ENCODER,
    "vLLM #55733": _NO_ENCODER,
    "vLLM #47728": _ONE_GROUP,
    "vLLM #46281": _ONE_GROUP,
    "vLLM #40027": _ONE_GROUP,
    "vLLM #40004": (
        "a full set of running requests makes nobody go, in vLLM 0.33.0 and in the spec alike: "
        "a choice, and no bug of ours"
    ),
    "vLLM #52179": (
        "without async scheduling the model keeps one step in flight, and with it a request goes "
        "on before its token is back: no pipeline that could run ahead"
    ),
    "vLLM #27462": "whether the seats of all batches in flight count as one is a choice",
}
"""By the first report of each; those of shared causes share a reason."""
