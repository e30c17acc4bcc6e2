"""`make chaos-router`: seeded load on a router while its engines are killed, frozen, cut off and restarted.

Exit status 1 on any violation: a wrong answer, a handle that reaches a client, an answer that failed without a fault
of its engine after the first byte, a hold that nobody frees, growing memory.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from duplex_connector.contract import ConnectorKind

from .account import MOST_SHOWN, Account, check_memory, write_report
from .faults import Faults
from .oracle import Oracle, PlainEngine
from .site import LEASE_SECONDS, TTL_SECONDS, Site, answers
from .talk import Talk

PROGRESS_SECONDS = 10.0
SAMPLE_SECONDS = 2.0
FREE_SECONDS = TTL_SECONDS + LEASE_SECONDS + 15.0
SHAPE = ("--sim-template", "strips-thinking", "--sim-tokenizer", "bpe-lossy")
PACE = ("--sim-profile", "qwen3-32b-p5en")


@dataclass
class Chaos:
    """One phase: engines of one kind, clients, faults."""

    options: argparse.Namespace
    kind: ConnectorKind
    seconds: float
    account: Account
    counts: dict[str, Any] = field(default_factory=dict)

    async def run(self) -> None:
        """Run the phase to its end and settle its accounts."""
        folder = self.options.folder / self.kind.value.lower()
        flags = [*SHAPE, *PACE, "--sim-time-scale", str(self.options.time_scale)]
        site = Site(self.kind, folder, flags, self.options.leg_seconds)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector, read_bufsize=4096) as session:
            oracle = PlainEngine(SHAPE, folder / "plain.log", session)
            try:
                await answers(oracle.port, session, oracle.process)
                await site.start(session, each=self.options.engines)
                await self._load(site, oracle, session)
                await self._settle(site, session)
            finally:
                await site.close()
                oracle.close()

    async def _load(self, site: Site, oracle: Oracle, session: aiohttp.ClientSession) -> None:
        seed = f"{self.options.seed}-{self.kind.value}"
        longest_freeze = min(1.5 * self.options.leg_seconds, LEASE_SECONDS / 2)
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
        began = time.monotonic()
        shown = began
        while (now := time.monotonic()) < began + self.seconds:
            self.account.memory.append((now, site.router_kilobytes()))
            for task in tasks:
                if task.done():
                    task.result()  # a client or the faults ended by an error of the harness
            if now - shown >= PROGRESS_SECONDS:
                shown = now
                print(f"{now - began:4.0f} s  {self._line()}", flush=True)
            await asyncio.sleep(SAMPLE_SECONDS)

    def _line(self) -> str:
        account, faults = self.account, self._faults
        return (
            f"{self.kind.value}: turns {account.total} {dict(account.turns)}, faults {dict(faults.counts)}, "
            f"reuse {dict(account.reuse)}, violations {len(account.violations)}"
        )

    async def _settle(self, site: Site, session: aiohttp.ClientSession) -> None:
        """End the router and see that nothing is left: no hold, no request, no block."""
        status = await site.stop_router()
        if status != 0:
            self.account.violated(f"the router ended with status {status}")
        held, used = await self._left(site, session)
        self.counts |= {"kills": self._faults.counts["kill"], "faults": dict(self._faults.counts)}
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
            if engine.corrupt:
                self.account.violated(f"{engine.name} read wrong or freed KV {engine.corrupt} times")

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


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="of load, guarded and stock engines together")
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time; it is printed")
    parser.add_argument("--stock-share", type=float, default=0.25, help="share of the time with stock engines")
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--engines", type=int, default=3, help="of each role")
    parser.add_argument("--time-scale", type=float, default=0.5, help="of the simulated model's times")
    parser.add_argument("--leg-seconds", type=float, default=10.0, help="the router's deadlines")
    parser.add_argument("--folder", type=Path, default=Path("build/chaos"), help="logs and report.json")
    options = parser.parse_args(arguments)
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(10**6)
    return options


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run both phases; return the report."""
    phases: dict[str, Any] = {}
    violations: list[str] = []
    shares = {ConnectorKind.GUARDED: 1 - options.stock_share, ConnectorKind.STOCK: options.stock_share}
    for kind, share in shares.items():
        if share <= 0:
            continue
        account = Account()
        chaos = Chaos(options, kind, options.seconds * share, account)
        await chaos.run()
        growth = check_memory(account)
        phases[kind.value] = {
            "turns": account.total,
            "outcomes": dict(account.turns),
            "actions": dict(account.actions),
            "reuse": dict(account.reuse),
            "brokenAnswers": account.breaks,
            "routerKilobytes": account.memory[-1][1] if account.memory else 0,
            "routerKilobytesPerMinute": round(growth, 1),
            **chaos.counts,
        }
        violations += [f"{kind.value}: {each}" for each in account.violations]
    return {"seed": options.seed, "seconds": options.seconds, "phases": phases, "violations": violations}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    options = parse_arguments(arguments)
    print(f"seed {options.seed}, {options.seconds:.0f} s of load", flush=True)
    report = asyncio.run(run(options))
    write_report(options.folder / "report.json", report)
    for kind, phase in report["phases"].items():
        print(
            f"{kind}: {phase['turns']} turns {phase['outcomes']}, faults {phase['faults']}, reuse {phase['reuse']}, "
            f"held tokens {phase['heldTokensAfterRelease']} after release, {phase['heldTokensAtTheEnd']} at the end, "
            f"router {phase['routerKilobytes']} kB, {phase['routerKilobytesPerMinute']:+} kB a minute"
        )
    for violation in report["violations"][:MOST_SHOWN]:
        print(f"VIOLATION {violation}")
    turns = sum(phase["turns"] for phase in report["phases"].values())
    kills = sum(phase["kills"] for phase in report["phases"].values())
    print(f"chaos: {turns} turns, {kills} kills, {len(report['violations'])} violations, seed {options.seed}")
    return 1 if report["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
