"""The stock NIXL connector's rules, faults included (vLLM 0.33.0, nixl/pull_scheduler.py and pull_worker.py).

A stock engine trusts every field of kv_transfer_params. So a value of the wrong type raises here as it does there, and
the engine dies of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

from duplex_connector.contract import Params

from .clock import Clock
from .holds import Hold, Holds
from .pull import Pull, address_of, notice
from .request import EngineRequest
from .sequence import Layout

_PEER_KEYS: Final = (Params.BLOCK_IDS, Params.ENGINE_ID, Params.REQUEST_ID, Params.HOST, Params.PORT)


@dataclass(frozen=True)
class ConnectorSettings:
    """What `--kv-transfer-config` and the side-channel environment say.

    `host_buffer`: KV staged through host memory, with which a decode-to-prefill pull never starts (trap 2).
    `recompute`: the load failure policy. `ttl`, `lease`: seconds. `threshold`: tokens.
    `network_patience`: seconds after which a read over a network that was cut fails (UCX_TCP_USER_TIMEOUT); 0: never.
    `publishes_generation`: handles carry vLLM 0.33's remote_registration_generation.
    """

    engine_id: str
    host: str
    port: int
    guarded: bool = False
    bidirectional: bool = False
    host_buffer: bool = False
    recompute: bool = False
    lease: float = 30.0
    ttl: float = 480.0
    threshold: int = 64
    tensor_parallel: int = 1
    network_patience: float = 0.0
    publishes_generation: bool = True


class Connector(Protocol):
    """The scheduler's side of a KV connector, as vLLM calls it."""

    settings: ConnectorSettings
    holds: Holds

    def arrived(self, request: EngineRequest) -> None:
        """Look at a request before it is queued."""

    def tokens_to_load(self, request: EngineRequest, local: int) -> int:
        """Return how many tokens beyond `local` are to come from a peer; the engine waits for them."""

    def admitted(self, request: EngineRequest, loading: int) -> Pull | None:
        """Return the transfer that starts now that the request has its blocks."""

    def pull_failed(self, request: EngineRequest) -> None:
        """Take note of a failed pull."""

    def finished(self, request: EngineRequest) -> tuple[bool, dict[str, Any] | None]:
        """Return whether the request's blocks are held for a peer, and the params of the answer."""

    def rejected(self, params: dict[str, Any]) -> Pull | None:
        """Take the params of a request that never entered the engine."""


class StockConnector:
    """vLLM's own rules: single-use handles, one TTL, one threshold, no proof."""

    def __init__(self, settings: ConnectorSettings, holds: Holds, layout: Layout, clock: Clock) -> None:
        self.settings, self.holds, self.layout, self.clock = settings, holds, layout, clock

    def arrived(self, request: EngineRequest) -> None:
        """Drop the last prompt token of a state-space model's hand-off, as vLLM does: a state cannot be rewound."""
        params = request.params
        if params and params.get(Params.DO_REMOTE_DECODE) and self.layout.has_state and len(request.kv.tokens) > 1:
            request.kv.drop_last()

    def tokens_to_load(self, request: EngineRequest, local: int) -> int:
        """Return what the params claim, cut to the prompt: no token is compared (trap 5), no flag is asked (trap 2).

        Asked again after a failure or a preemption, a prefill claims the same (traps 3 and 4).
        """
        params = request.params
        if not params:
            return 0
        prompt = len(request.kv.tokens) - len(request.output)
        if params.get(Params.DO_REMOTE_PREFILL):
            count = prompt - int(self.layout.has_state) - local
            if count > 0:
                return count
        if params.get(Params.DO_REMOTE_DECODE) and params.get(Params.BLOCK_IDS) and address_of(params) is not None:
            count = int(min(params.get(Params.NUM_TOKENS) or 0, prompt) - local)
            if count >= max(1, self.settings.threshold):
                return count
        return 0

    def admitted(self, request: EngineRequest, loading: int) -> Pull | None:
        """Register the read, or the notice alone where nothing is to be loaded; once per request."""
        params = request.params
        if not params:
            return None
        if params.get(Params.DO_REMOTE_DECODE) or (
            params.get(Params.DO_REMOTE_PREFILL) and self.settings.bidirectional
        ):
            request.tracked = True
        reads_turn = (
            params.get(Params.DO_REMOTE_DECODE)
            and self.settings.bidirectional
            and not self.settings.host_buffer
            and not params.get("_remote_blocks_processed")
        )
        if not params.get(Params.DO_REMOTE_PREFILL) and not reads_turn:
            return None
        pull = None
        if params.get(Params.BLOCK_IDS):
            pull = self._pull(request, params, loading)
        elif loading:
            raise AssertionError("tokens are claimed from a peer that names no blocks")
        params[Params.DO_REMOTE_PREFILL] = False
        params["_remote_blocks_processed"] = True
        return pull

    def _pull(self, request: EngineRequest, params: dict[str, Any], loading: int) -> Pull | None:
        address = address_of(params)
        if address is None:
            return None
        engine_id, request_id, host, port = address
        local = request.kv.unhashed() if loading else []
        return Pull(
            engine_id,
            host,
            port,
            request_id,
            remote=params[Params.BLOCK_IDS] if loading else [],
            local=local,
            expires=params.get(Params.EXPIRY_TIME),
            turn=bool(params.get(Params.DO_REMOTE_DECODE)),
        )

    def pull_failed(self, request: EngineRequest) -> None:
        """Remember nothing: that is what makes trap 3."""

    def finished(self, request: EngineRequest) -> tuple[bool, dict[str, Any] | None]:
        """Hold the blocks of a hand-off or of a finished turn, and say where they are.

        Aborted and failed requests never come here: the engine frees their blocks itself.
        """
        params = request.params
        if not params:
            return False, None
        is_prefill = bool(params.get(Params.DO_REMOTE_DECODE))
        if not is_prefill and not self.settings.bidirectional:
            return False, None
        ttl = self.settings.lease if is_prefill else self.settings.ttl
        return True, self.hold(request, is_prefill=is_prefill, ttl=ttl)

    def hold(self, request: EngineRequest, *, is_prefill: bool, ttl: float) -> dict[str, Any]:
        """Pin the request's blocks for `ttl` seconds and return the params that name them."""
        deadline = self.clock.now() + ttl
        tokens = request.kv.computed
        blocks = request.kv.exported()
        tables = request.kv.hand_over()
        self.holds.add(Hold(request.request_id, tables, tokens, deadline, turn=not is_prefill, tracked=request.tracked))
        answer: dict[str, Any] = {
            Params.DO_REMOTE_PREFILL: is_prefill,
            Params.DO_REMOTE_DECODE: not is_prefill,
            Params.BLOCK_IDS: blocks,
            Params.ENGINE_ID: self.settings.engine_id,
            Params.REQUEST_ID: request.request_id,
            Params.HOST: self.settings.host,
            Params.PORT: self.settings.port,
            Params.TP_SIZE: self.settings.tensor_parallel,
            Params.DCP_SIZE: 1,
            Params.PP_SIZE: 1,
            Params.NUM_TOKENS: tokens,
            Params.EXPIRY_TIME: None if is_prefill else deadline,
            "transfer_mode": "pull",
        }
        if self.settings.publishes_generation:
            answer[Params.REGISTRATION_GENERATION] = 0
        if is_prefill:
            answer[Params.CACHED_TOKENS] = request.cached or 0
        return answer

    def rejected(self, params: dict[str, Any]) -> Pull | None:
        """Tell the peer of a rejected decode leg that its blocks may go; KeyError ends the engine, as in vLLM.

        vLLM looks every key of a peer up without asking whether it is there (add_new_req_to_recv, nixl/metadata.py).
        """
        if not params.get(Params.DO_REMOTE_PREFILL):
            return None
        return notice({**params, **{key: params[key] for key in _PEER_KEYS}})
