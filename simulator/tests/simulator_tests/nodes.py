"""Engines inside the test's own process, with their side channels on loopback."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from duplex_connector.config import TransferSettings, kv_transfer_argument
from duplex_connector.contract import Backend, ConnectorKind, Env, Params, Role
from duplex_simulator.assembly import Process, assemble
from duplex_simulator.clock import Clock
from duplex_simulator.request import EngineRequest, Sampling, Token
from duplex_simulator.sequence import SequenceKV
from duplex_simulator.settings import parse

COLD: dict[str, Any] = {Params.DO_REMOTE_DECODE: True, Params.DO_REMOTE_PREFILL: False}
_ids = itertools.count()


def transfer(kind: ConnectorKind, **extra: Any) -> str:
    settings = TransferSettings(
        connector=kind,
        backend=Backend.UCX,
        buffer_device="cpu",
        role_is_both=True,
        lease_seconds=30,
        bidirectional=True,
        ttl_seconds=480,
        threshold_tokens=64,
    )
    config = json.loads(kv_transfer_argument(Role.PREFILL, settings))
    config["kv_connector_extra_config"] |= extra
    return json.dumps(config)


@dataclass
class Leg:
    tokens: list[int]
    last: Token
    request: EngineRequest

    @property
    def params(self) -> dict[str, Any]:
        return self.last.params or {}


@dataclass
class Node:
    process: Process

    def request(
        self, prompt: Sequence[int], most: int, params: dict[str, Any] | None = None, *, salt: str | None = None
    ) -> EngineRequest:
        engine = self.process.engine
        kv = SequenceKV(engine.pool, self.process.layout, prompt, adapter=None, salt=salt)
        sampling = Sampling(most, ignore_eos=True)
        return EngineRequest(f"r{next(_ids)}", kv, len(prompt), sampling, params=dict(params) if params else None)

    async def run(self, request: EngineRequest) -> Leg:
        tokens = [token async for token in self.process.engine.generate(request)]
        return Leg([token.token_id for token in tokens], tokens[-1], request)

    async def leg(self, prompt: Sequence[int], most: int, params: dict[str, Any] | None = None, **more: Any) -> Leg:
        return await self.run(self.request(prompt, most, params, **more))

    @property
    def used(self) -> int:
        return self.process.engine.pool.used


@contextlib.asynccontextmanager
async def node(clock: Clock, *flags: str, kind: ConnectorKind | None = None, **extra: Any) -> AsyncIterator[Node]:
    arguments = ["serve", "model", *flags]
    if kind is not None:
        arguments += ["--kv-transfer-config", transfer(kind, **extra)]
    env = {Env.SIDE_CHANNEL_HOST: "127.0.0.1", Env.SIDE_CHANNEL_PORT: "0"}
    process = assemble(parse(arguments, env), clock)
    await process.start()
    try:
        yield Node(process)
    finally:
        await process.close()
