"""Seeded clients: conversations that go on, branch, are edited and left, each answer compared with what it must be."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from duplex_connector.contract import Header, Params

from .account import Account
from .faults import Faults
from .loopback import HOST
from .oracle import MODEL, Oracle
from .router import Router
from .site import Site

OK = 200
TURN_SECONDS = 180.0
WORDS = "the of and to in is that for it as was with be by on not he this are or his from at which but have".split()  # noqa: SIM905 - a list of words is harder to read
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
ACTIONS = {"continue": 40, "branch": 10, "edit": 10, "strip": 10, "regenerate": 10, "tool-loop": 10, "parallel": 10}
Message = dict[str, Any]


@dataclass
class Got:
    """What a client got: the status, the text so far, and whether the answer came to its end."""

    status: int = 0
    text: str = ""
    complete: bool = False
    left: bool = False
    leaked: bool = False
    reuse: str = ""
    error: str = ""
    begin: float = 0.0
    end: float = 0.0


@dataclass
class Talk:
    """One client: holds one conversation after another until told to stop."""

    site: Site
    oracle: Oracle
    faults: Faults
    account: Account
    session: aiohttp.ClientSession
    random: random.Random
    name: str
    turns: int = 0
    tenant: str = ""
    messages: list[Message] = field(default_factory=list)

    async def run(self, stop: asyncio.Event) -> None:
        """Hold conversations."""
        while not stop.is_set():
            self.tenant = f"{self.name}-{self.random.randrange(3)}"
            self.messages = [
                {"role": "system", "content": self._words(30)},
                {"role": "user", "content": self._words(60)},
            ]
            tools = {"tools": TOOLS} if self.random.random() < 0.3 else {}  # noqa: PLR2004 - three in ten
            for _ in range(self.random.randint(2, 9)):
                if stop.is_set():
                    return
                await self._step(tools)
                await asyncio.sleep(self.random.uniform(0.0, 0.5))

    def _words(self, most: int) -> str:
        return " ".join(self.random.choices(WORDS, k=self.random.randint(1, most)))

    async def _step(self, tools: dict[str, Any]) -> None:
        """Ask, and go on with what was answered in one of many ways."""
        got = await self._ask(self.messages, tools)
        if not got.complete:
            return  # ask the same again, as clients do
        action = self.random.choices(list(ACTIONS), list(ACTIONS.values()))[0]
        self.account.actions[action] += 1
        reply: Message = {"role": "assistant", "content": got.text}
        after: list[Message] = [*self.messages, reply]
        user: Message = {"role": "user", "content": self._words(80)}
        match action:
            case "continue":
                self.messages = [*after, user]
            case "branch":
                users = [index for index, message in enumerate(after) if message["role"] == "user"]
                self.messages = [*after[: self.random.choice(users)], user]
            case "edit":
                place = self.random.randrange(len(after))
                edited = {**after[place], "content": self._words(40)}
                self.messages = [*after[:place], edited, *after[place + 1 :], user]
            case "strip":
                stripped = {"role": "assistant", "content": got.text.rpartition("</think>")[2].strip()}
                self.messages = [*self.messages, stripped, user]
            case "tool-loop" if tools:
                function = {"name": "look_up", "arguments": '{"word":"duplex"}'}
                call = {"id": f"call-{self.turns}", "type": "function", "function": function}
                found = {"role": "tool", "tool_call_id": call["id"], "content": self._words(30)}
                self.messages = [*self.messages, {**reply, "tool_calls": [call]}, found]
            case "parallel":
                others = [[*after, {"role": "user", "content": self._words(40)}] for _ in range(2)]
                await asyncio.gather(*(self._ask(other, tools) for other in others))
                self.messages = [*after, user]

    async def _ask(self, messages: list[Message], tools: dict[str, Any]) -> Got:
        """Send one turn and account for its answer."""
        self.turns += 1
        request_id = f"{self.name}-{self.turns}"
        rng = random.Random(f"{self.random.random()}")  # noqa: S311 - seeded on purpose
        body: dict[str, Any] = {"model": MODEL, "messages": messages, "temperature": 0, **tools}
        body |= {"max_tokens": rng.randint(8, 120), "stream": rng.random() < 0.75, "ignore_eos": rng.random() < 0.4}  # noqa: PLR2004 - shares
        expected = await self.oracle.text(body)
        got = Got()
        router = rng.choice(self.site.routers)
        over = self.faults.under_way[request_id] = asyncio.Event()
        got.begin = time.monotonic()
        leaves_after = rng.uniform(0.0, 1.5) if rng.random() < 0.1 else None  # noqa: PLR2004 - one in ten leaves
        headers = {Header.TENANT: self.tenant, Header.REQUEST_ID: request_id}
        try:
            async with asyncio.timeout(leaves_after if leaves_after is not None else TURN_SECONDS):
                await self._exchange(router, body, headers, got, slow=rng.random() < 0.1)  # noqa: PLR2004 - one in ten is slow
        except TimeoutError:
            got.left = leaves_after is not None
            got.error = got.error or "no answer in time"
        except aiohttp.ClientError as error:
            got.error = repr(error)
        got.end = time.monotonic()
        del self.faults.under_way[request_id]
        over.set()
        router.turns += 1
        await self._judge(router, request_id, got, expected)
        return got

    async def _exchange(
        self, router: Router, body: dict[str, Any], headers: dict[str, str], got: Got, *, slow: bool
    ) -> None:
        url = f"http://{HOST}:{router.port}/v1/chat/completions"
        async with self.session.post(url, json=body, headers=headers) as answer:
            got.status = answer.status
            got.reuse = answer.headers.get(Header.REUSE, "").partition(";")[0]
            if answer.status != OK or not body["stream"]:
                raw = await answer.read()
                self._take_whole(raw, got)
                return
            await self._read_stream(answer, got, slow=slow)

    @staticmethod
    def _take_whole(raw: bytes, got: Got) -> None:
        if got.status != OK:
            got.error = raw.decode("utf-8", "replace")[:300]
            return
        answer = json.loads(raw)
        got.leaked = answer.get(Params.FIELD) is not None
        got.text, got.complete = answer["choices"][0]["message"]["content"] or "", True

    @staticmethod
    async def _read_stream(answer: aiohttp.ClientResponse, got: Got, *, slow: bool) -> None:
        done = False
        async for line in answer.content:
            if slow:
                await asyncio.sleep(0.02)
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                done = True
                continue
            event = json.loads(line[6:])
            if "error" in event:
                got.error = str(event["error"])[:300]
                continue
            got.leaked = got.leaked or event.get(Params.FIELD) is not None
            for choice in event["choices"]:
                got.text += choice["delta"].get("content") or ""
        got.complete = done and not got.error

    async def _judge(self, router: Router, request_id: str, got: Got, expected: str) -> None:
        account = self.account
        if got.leaked:
            account.violated(f"{request_id}: an engine's handle reached the client")
        if got.complete and got.text != expected:
            account.violated(f"{request_id}: wrong answer {got.text[:80]!r}, not {expected[:80]!r}")
        elif not expected.startswith(got.text):
            account.violated(f"{request_id}: wrong beginning {got.text[:80]!r}, not {expected[:80]!r}")
        if got.complete:
            account.turns["answered"] += 1
            account.reuse[got.reuse] += 1
        elif got.left:
            account.turns["left"] += 1
        elif got.status == OK:
            account.turns["broken"] += 1
            await self._explain(router, request_id, got)
        else:
            account.turns[f"status {got.status}"] += 1
            record = await self._record(router, request_id)
            met = self.faults.met(got.begin, got.end)
            account.violated(f"{request_id}: {got.status or 'no answer'} {got.error}; {met}; {record}")

    async def _record(self, router: Router, request_id: str) -> dict[str, Any]:
        """Return what the router says of a turn."""
        try:
            async with self.session.get(f"http://{HOST}:{router.admin}/explain/{request_id}") as answer:
                found: dict[str, Any] = await answer.json() if answer.status == OK else {}
                return found
        except (aiohttp.ClientError, TimeoutError):
            return {}

    async def _explain(self, router: Router, request_id: str, got: Got) -> None:
        """Find the fault that broke an answer after its first byte: its decode engine's, while it answered."""
        record = await self._record(router, request_id)
        window = self.faults.explains(got.begin, got.end, {str(record.get("decode"))})
        if window is None:
            self.account.violated(f"{request_id}: broken off without a fault of its engine: {got.error}; {record}")
            return
        self.account.breaks.append({"turn": request_id, "fault": window.kind, "engine": window.engine})
