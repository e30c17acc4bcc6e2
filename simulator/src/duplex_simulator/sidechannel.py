"""The side channel: engines shake hands, read one another's blocks over TCP, and notify one another.

Real NIXL shakes hands over ZMQ and reads one-sidedly; here both go through one connection per pair of engines, with
the rules that matter kept: each side states which engine it is and which it expects (base_worker.py:1230), the holder's
clock is learnt in the handshake, a peer that was never met costs five seconds when it is gone, and one that was met
fails at once.

A frame is a 4-byte length and JSON; the answer to a read is followed by the blocks' bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from dataclasses import dataclass
from typing import Any, Final, Protocol

from .clock import Clock

logger = logging.getLogger(__name__)

HANDSHAKE_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 0.1
_LONGEST_FRAME: Final = 64 << 20


class TransferError(Exception):
    """A handshake, read or notification failed; vLLM reports it as a load failure."""


class Holder(Protocol):
    """What a peer may ask of this engine."""

    def read_blocks(self, request_id: str, block_ids: list[list[int]]) -> list[list[bytes]]:
        """Return the blocks' content by group; raises IndexError for an id beyond the pool."""

    def notified(self, text: str) -> None:
        """Take a peer's notification."""


@dataclass(frozen=True)
class Identity:
    """Who an engine is: a new id with every start; `compatibility`: what must be equal on both sides."""

    engine_id: str
    compatibility: str
    block_sizes: tuple[int, ...]


async def _send(writer: asyncio.StreamWriter, message: dict[str, Any], payload: bytes = b"") -> None:
    if writer.is_closing():  # uvloop answers a write to it by an error of its own kind
        raise ConnectionResetError("the connection is closed")
    head = json.dumps({**message, "payload": len(payload)}).encode()
    writer.write(len(head).to_bytes(4, "big") + head + payload)
    await writer.drain()


async def _receive(reader: asyncio.StreamReader) -> tuple[dict[str, Any], bytes]:
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > _LONGEST_FRAME:
        raise TransferError("the peer does not speak the side channel's protocol")
    message = json.loads(await reader.readexactly(size))
    return message, await reader.readexactly(message["payload"])


class SideChannelServer:
    """Answers peers on the side-channel port."""

    def __init__(self, identity: Identity, holder: Holder, clock: Clock) -> None:
        self._identity, self._holder, self._clock = identity, holder, clock
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port, which is another than asked for where that was 0."""
        self._server = await asyncio.start_server(self._serve, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and drop every peer."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
        try:
            while True:
                message, _ = await _receive(reader)
                answer, payload = self._answer(message)
                await _send(writer, answer, payload)
        except (asyncio.IncompleteReadError, ConnectionError, TransferError, ValueError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    def _answer(self, message: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        match message.get("kind"):
            case "hello":
                own = self._identity
                expected = message.get("expects")
                if expected != own.engine_id:
                    logger.warning("a peer expects engine %s here; this one is %s", expected, own.engine_id)
                return {
                    "engine": own.engine_id,
                    "compatibility": own.compatibility,
                    "blockSizes": list(own.block_sizes),
                    "now": self._clock.now(),
                }, b""
            case "read":
                return self._read(message)
            case "notify":
                self._holder.notified(message["text"])
                return {}, b""
            case other:
                return {"error": f"unknown message {other!r}"}, b""

    def _read(self, message: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        if message.get("expects") != self._identity.engine_id:
            return {"error": "engine ID mismatch"}, b""
        try:
            groups = self._holder.read_blocks(message["request"], message["blocks"])
        except IndexError as error:
            return {"error": str(error)}, b""
        sizes = [[len(block) for block in group] for group in groups]
        return {"sizes": sizes}, b"".join(block for group in groups for block in group)


class _Session:
    """One connection to a peer; `offset`: the peer's clock minus ours."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._lock = asyncio.Lock()
        self.offset = 0.0

    async def ask(self, message: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        async with self._lock:
            await _send(self._writer, message)
            return await _receive(self._reader)

    def close(self) -> None:
        self._writer.close()


class SideChannelClient:
    """Asks peers; remembers a session per engine, as NIXL does its agents."""

    def __init__(self, identity: Identity, clock: Clock, patience: float = 0.0) -> None:
        self._identity, self._clock = identity, clock
        self._patience = patience
        self._sessions: dict[tuple[str, str, int], _Session] = {}
        self._handshakes = asyncio.Lock()

    def close(self) -> None:
        """Drop every session."""
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    async def offset(self, engine_id: str, host: str, port: int) -> float:
        """Return the peer's clock minus ours, in seconds; shakes hands where that has not been done."""
        return (await self._session(engine_id, host, port)).offset

    async def read(
        self, engine_id: str, host: str, port: int, request_id: str, block_ids: list[list[int]]
    ) -> list[list[bytes]]:
        """Return the content of a peer's blocks by group; raises TransferError."""
        message = {"kind": "read", "expects": engine_id, "request": request_id, "blocks": block_ids}
        answer, payload = await self._ask((engine_id, host, port), message)
        groups, at = [], 0
        for sizes in answer["sizes"]:
            blocks = []
            for size in sizes:
                blocks.append(payload[at : at + size])
                at += size
            groups.append(blocks)
        return groups

    async def notify(self, engine_id: str, host: str, port: int, text: str) -> None:
        """Send one notification; raises TransferError."""
        await self._ask((engine_id, host, port), {"kind": "notify", "text": text})

    async def _ask(self, peer: tuple[str, str, int], message: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        session = await self._session(*peer)
        try:
            answer, payload = await session.ask(message)
        except (OSError, asyncio.IncompleteReadError) as error:
            self._forget(peer)
            raise TransferError(f"engine {peer[0]} at {peer[1]}:{peer[2]} is gone: {error}") from error
        if "error" in answer:
            raise TransferError(str(answer["error"]))
        return answer, payload

    def _forget(self, peer: tuple[str, str, int]) -> None:
        session = self._sessions.pop(peer, None)
        if session is not None:
            session.close()

    async def _session(self, engine_id: str, host: str, port: int) -> _Session:
        peer = (engine_id, host, port)
        if peer not in self._sessions:
            # One at a time, as vLLM's one handshake thread: a dead peer delays the first meeting with others.
            async with self._handshakes:
                if peer not in self._sessions:
                    self._sessions[peer] = await self._shake_hands(engine_id, host, port)
        return self._sessions[peer]

    async def _shake_hands(self, engine_id: str, host: str, port: int) -> _Session:
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                session = _Session(*await self._connect(host, port))
                try:
                    await self._introduce(session, engine_id)
                except BaseException:
                    session.close()
                    raise
        except (TimeoutError, OSError, asyncio.IncompleteReadError, KeyError, ValueError) as error:
            raise TransferError(f"no handshake with engine {engine_id} at {host}:{port}: {error!r}") from error
        return session

    async def _introduce(self, session: _Session, engine_id: str) -> None:
        before = self._clock.now()
        answer, _ = await session.ask({"kind": "hello", "expects": engine_id, "from": self._identity.engine_id})
        session.offset = answer["now"] - (before + self._clock.now()) / 2
        self._check(engine_id, answer)

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect, trying until the handshake's time is up: ZMQ does not report a refused connection either."""
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                reader, writer = await asyncio.open_connection(host, port)
                # Nothing comes back over a network that was cut: without this a read hangs for ever, as with UCX.
                connected: socket.socket = writer.get_extra_info("socket")
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(self._patience * 1000))
                return reader, writer
            await asyncio.sleep(_RETRY_SECONDS)

    def _check(self, engine_id: str, answer: dict[str, Any]) -> None:
        if answer["engine"] != engine_id:
            raise TransferError(
                f"Remote NIXL agent engine ID mismatch. Expected {engine_id}, received {answer['engine']}."
            )
        if answer["compatibility"] != self._identity.compatibility:
            raise TransferError("NIXL compatibility hash mismatch: version, model or KV groups differ")
        for own, theirs in zip(self._identity.block_sizes, answer["blockSizes"], strict=True):
            if own % theirs:
                raise TransferError(f"block size {own} is not a multiple of the peer's {theirs}")
