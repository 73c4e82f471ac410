"""A remote store as vLLM's scheduler knows it: the scheduler's half of a KV connector.

Entry point: `RemoteStore`. It answers what the store holds, and remembers which loads the scheduler
has begun. What becomes of them is the environment's choice, and is told as a step's result.
"""

from __future__ import annotations

from typing import Any

from spec.interface import KVLoad, NewRequest

PARAMETER = "num_remote_tokens"


def make_transfer_params(new: NewRequest) -> dict[str, Any] | None:
    """What a request tells a connector; None if the store holds nothing of it."""
    return {PARAMETER: new.num_remote_tokens} if new.num_remote_tokens else None


class RemoteStore:
    """A connector of which loads are asynchronous, and of which nothing is ever sent away.

    Of vllm/distributed/kv_transfer/kv_connector/v1/base.py: KVConnectorBase_V1 it has what the
    scheduler asks for.
    """

    requires_kv_delivery = False
    supports_divergent_local_hybrid_hits = False

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.begun: dict[str, KVLoad] = {}
        """Loads that have begun since the last step was planned."""

    def take_begun(self) -> dict[str, KVLoad]:
        """Returns the loads that have begun, once."""
        begun, self.begun = self.begun, {}
        return begun

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        """How many tokens the store holds beyond those, in whole blocks, loaded meanwhile."""
        num_tokens = (request.kv_transfer_params or {}).get(PARAMETER, 0)
        num_new_tokens = num_tokens // self.block_size * self.block_size - num_computed_tokens
        return max(num_new_tokens, 0), num_new_tokens > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Notes a load; of a request that holds its blocks already there is none."""
        if num_external_tokens == 0:
            return
        block_ids = blocks.get_block_ids()[0]
        end = len(block_ids) * self.block_size
        start = end - num_external_tokens
        self.begun[request.request_id] = KVLoad(
            start, end, list(block_ids[start // self.block_size :])
        )

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
        """All of the one group there is: what is loaded is not zeroed."""
        return (0,)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        """Sends nothing away, so blocks need not be kept for that."""
        return False, None

    def has_pending_block_frees(self) -> bool:
        """Holds no blocks of its own."""
        return False

    def on_new_request(self, request: Any) -> None:
        """Has nothing to prepare."""

    def build_connector_meta(self, scheduler_output: Any) -> None:
        """Tells its worker nothing, since there is none."""

    def update_connector_output(self, connector_output: Any) -> None:
        """Has seen to it itself."""

    def get_kv_connector_stats(self) -> None:
        """Counts nothing."""

    def take_events(self) -> tuple[()]:
        """Has none."""
        return ()
