"""One phase: engines of one kind, routers, clients and faults, and the settlement of accounts at its end."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from duplex_connector.contract import ConnectorKind, Header

from .account import Account, check_memory
from .engine import LEASE_SECONDS, TTL_SECONDS, answers
from .faults import Faults
from .loopback import HOST
from .oracle import MODEL, PlainEngine
from .site import Site
from .talk import Talk

PROGRESS_SECONDS = 10.0
SAMPLE_SECONDS = 2.0
WARM_UP_SECONDS = 2.0 * TTL_SECONDS
FREE_SECONDS = TTL_SECONDS + LEASE_SECONDS + 15.0
SHAPE = ("--sim-template", "strips-thinking", "--sim-tokenizer", "bpe-lossy")
PACE = ("--sim-profile", "qwen3-32b-p5en")
REFUSED = 1100
"""A router keeps 1,024 heads of requests, and what it can explain of as many turns."""

AT_ONCE = 8
FULL_SECONDS = 600.0
LEAST_TURNS_IN_FULL, LEAST_KILLS_IN_FULL = 2000, 30
LONGEST = 3.0
"""A phase that has not had enough goes on, to so many times its seconds."""

SLOWNESS = 5.0
"""A leg's deadline is so many times what the longest answer takes here with all clients at once, at least."""


@dataclass(frozen=True)
class Plan:
    """What a phase runs, and its share of the time."""

    kind: ConnectorKind
    routers: int
    share: float

    @property
    def name(self) -> str:
        """How the report names it."""
        return f"{self.kind.value}, {self.routers} router{'s' if self.routers > 1 else ''}"


PLANS = (Plan(ConnectorKind.GUARDED, 2, 0.6), Plan(ConnectorKind.STOCK, 2, 0.2), Plan(ConnectorKind.GUARDED, 1, 0.2))


@dataclass
class Phase:
    """See the module. `run` it once; `report` is what came of it."""

    options: argparse.Namespace
    plan: Plan
    account: Account = field(default_factory=Account)
    counts: dict[str, Any] = field(default_factory=dict)

    async def run(self) -> None:
        """Run to the end."""
        folder = self.options.folder / self.plan.name.lower().replace(", ", "-").replace(" ", "-")
        flags = [*SHAPE, *PACE, "--sim-time-scale", str(self.options.time_scale)]
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector, read_bufsize=4096) as session:
            oracle = PlainEngine(SHAPE, folder / "plain.log", session)
            paced = PlainEngine(flags, folder / "paced.log", session)
            site = Site(self.plan.kind, folder, flags, self.options.leg_seconds)
            try:
                for each in (oracle, paced):
                    await answers(each.port, session, each.process.alive)
                site.legs = max(site.legs, SLOWNESS * await self._longest(paced))
                paced.close()
                await site.start(session, each=self.options.engines, routers=self.plan.routers)
                await self._warm_up(site, session)
                await self._load(site, oracle, session)
                await self._settle(site, session)
            finally:
                await site.close()
                for each in (oracle, paced):
                    each.close()

    async def _longest(self, engine: PlainEngine) -> float:
        """Return the seconds of the longest answer with all clients at once on one engine: machines differ."""
        body = {"model": MODEL, "max_tokens": 120, "ignore_eos": True, "messages": [{"role": "user", "content": "of"}]}
        began = time.monotonic()
        await asyncio.gather(*(engine.text(body) for _ in range(self.options.clients)))
        return time.monotonic() - began

    @staticmethod
    async def _warm_up(site: Site, session: aiohttp.ClientSession) -> None:
        """Fill what a router keeps of its latest requests and turns, whose heads differ as those of clients do."""
        body = {"model": MODEL, "max_tokens": 10**9, "messages": [{"role": "user", "content": "of"}]}
        numbers = itertools.count()

        async def ask(port: int) -> None:
            for _ in range(REFUSED // AT_ONCE):
                headers = {Header.TENANT: "c0-0", Header.REQUEST_ID: f"warm-{next(numbers)}"}
                url = f"http://{HOST}:{port}/v1/chat/completions"
                async with session.post(url, json=body, headers=headers) as answer:
                    if answer.status != 400:  # noqa: PLR2004 - bad request
                        raise RuntimeError(f"a prompt that is too long was answered with {answer.status}")

        await asyncio.gather(*(ask(router.port) for router in site.routers for _ in range(AT_ONCE)))

    async def _load(self, site: Site, oracle: PlainEngine, session: aiohttp.ClientSession) -> None:
        seed = f"{self.options.seed}-{self.plan.name}"
        longest_freeze = min(1.5 * site.legs, LEASE_SECONDS / 2)
        self._faults = Faults(site, session, random.Random(f"{seed}-faults"), longest_freeze)  # noqa: S311 - seeded
        talks = [
            Talk(site, oracle, self._faults, self.account, session, random.Random(f"{seed}-{number}"), f"c{number}")  # noqa: S311 - seeded
            for number in range(self.options.clients)
        ]
        stop, calm = asyncio.Event(), asyncio.Event()
        tasks = [asyncio.create_task(talk.run(stop)) for talk in talks]
        faults = asyncio.create_task(self._faults.run(calm))
        await self._watch(site, [*tasks, faults])
        calm.set()
        await faults
        stop.set()
        await asyncio.gather(*tasks)

    async def _watch(self, site: Site, tasks: list[asyncio.Task[None]]) -> None:
        began = shown = time.monotonic()
        seconds = self.options.seconds * self.plan.share
        while (now := time.monotonic()) < began + seconds or (not self._enough() and now < began + LONGEST * seconds):
            for router in site.routers:
                router.measure(now - began)
            for task in tasks:
                if task.done():
                    task.result()  # a client or the faults ended by an error of the harness
            if now - shown >= PROGRESS_SECONDS:
                shown = now
                print(f"{now - began:4.0f} s  {self._line()}", flush=True)
            await asyncio.sleep(SAMPLE_SECONDS)

    def _enough(self) -> bool:
        """Tell whether the phase has had its part of what a run of ten minutes must have; slow machines take longer."""
        part = self.plan.share * self.options.seconds / FULL_SECONDS
        turns, kills = self.account.total, self._faults.counts["kill"]
        return bool(turns >= part * LEAST_TURNS_IN_FULL and kills >= part * LEAST_KILLS_IN_FULL)

    def _line(self) -> str:
        account, faults = self.account, self._faults
        return (
            f"{self.plan.name}: turns {account.total} {dict(account.turns)}, faults {dict(faults.counts)}, "
            f"reuse {dict(account.reuse)}, violations {len(account.violations)}"
        )

    async def _settle(self, site: Site, session: aiohttp.ClientSession) -> None:
        """End the routers and see that nothing is left: no hold, no request, no block."""
        if not self._enough():
            self.account.violated(f"too little: {self.account.total} turns, {self._faults.counts['kill']} kills")
        for router, status in zip(site.routers, await site.stop_routers(), strict=True):
            if status != 0:
                self.account.violated(f"{router.name} ended with status {status}")
        held, used = await self._left(site, session)
        self.counts["heldTokensAfterRelease"] = held
        deadline = time.monotonic() + FREE_SECONDS
        while used and time.monotonic() < deadline:
            await asyncio.sleep(1.0)
            held, used = await self._left(site, session)
        self.counts["heldTokensAtTheEnd"] = held
        if used:
            self.account.violated(f"{used} blocks are not free, {held} tokens held after every lease has passed")
        for engine in site.engines:
            await self._faults.note(engine)
            if engine.corrupt.total:
                self.account.violated(f"{engine.name} answered from wrong KV {engine.corrupt.total} times")
            if engine.late.total:
                self.account.violated(f"freed blocks of {engine.name} were read {engine.late.total} times")
        slopes = {
            each.name: check_memory(self.account, each.name, each.memory, WARM_UP_SECONDS) for each in site.routers
        }
        self.counts |= {
            "legSeconds": round(site.legs, 1),
            "kills": self._faults.counts["kill"],
            "faults": dict(self._faults.counts),
            "routerKilobytes": {each.name: each.memory[-1].kilobytes for each in site.routers if each.memory},
            "routerKilobytesPerThousandTurns": slopes,
        }

    @staticmethod
    async def _left(site: Site, session: aiohttp.ClientSession) -> tuple[int, int]:
        """Return the tokens held and the blocks in use on all engines."""
        held = used = 0
        for engine in site.engines:
            state = await engine.state(session)
            if state is None:
                raise RuntimeError(f"{engine.name} does not answer at the end")
            held += sum(hold["tokens"] for hold in state["holds"])
            used += state["blocks"]["used"]
        return held, used

    @property
    def report(self) -> dict[str, Any]:
        """What came of it, for the report."""
        account = self.account
        return {
            "turns": account.total,
            "outcomes": dict(account.turns),
            "actions": dict(account.actions),
            "reuse": dict(account.reuse),
            "brokenAnswers": account.breaks,
            **self.counts,
        }
