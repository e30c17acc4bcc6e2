"""A transfer from a peer as the connector asks for it, and the address that params name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from duplex_connector.contract import Params

_ADDRESS: Final = (Params.ENGINE_ID, Params.REQUEST_ID, Params.HOST, Params.PORT)


@dataclass(frozen=True)
class Pull:
    """One read of a peer's blocks, or, with no `local` blocks, only the notice that the peer may free its own.

    `remote` is what the params say, unchecked. `expires`: on the peer's clock. `turn`: from decode to prefill; else a
    hand-off.
    """

    engine_id: str
    host: str
    port: int
    request_id: str
    remote: list[list[int]]
    local: list[list[int]]
    expires: float | None
    turn: bool

    def aligned(self) -> list[list[int]]:
        """Return the tail of the peer's lists: both are taken to end at the same token (base_worker.py:3788).

        Raises what the worker raises where the lists are too short or no lists: that kills the engine.
        """
        if len(self.remote) != len(self.local):
            raise AssertionError(f"{len(self.remote)} groups of remote blocks for {len(self.local)} local ones")
        out = []
        for remote, local in zip(self.remote, self.local, strict=True):
            if len(remote) < len(local):
                raise AssertionError(f"{len(remote)} remote blocks for {len(local)} local ones")
            out.append(list(remote[len(remote) - len(local) :]))
        return out


def address_of(params: dict[str, Any]) -> tuple[str, str, str, int] | None:
    """Return engine id, request id, host and port, or None where one is missing."""
    if not all(key in params for key in _ADDRESS):
        return None
    return params[Params.ENGINE_ID], params[Params.REQUEST_ID], params[Params.HOST], params[Params.PORT]


def notice(params: dict[str, Any]) -> Pull | None:
    """Return a transfer that reads nothing and lets the peer free its blocks; None where no peer is named."""
    address = address_of(params)
    if address is None or not params.get(Params.BLOCK_IDS):
        return None
    engine_id, request_id, host, port = address
    return Pull(engine_id, host, port, request_id, [], [], None, turn=bool(params.get(Params.DO_REMOTE_DECODE)))
