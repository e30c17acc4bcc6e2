"""Running the scenarios: in rounds, each round all subjects in turn, so that what drifts drifts for all alike."""

from __future__ import annotations

import re
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from .machine import BenchError, cpu_seconds, memory_kb
from .scenarios import IDLE_LOAD, IDLE_STREAMS, LEAK_LOAD, LEAK_WARM, PREFILL_PATH, SCENARIOS, Scenario
from .subjects import DECODE_PORT, MAKERS, PREFILL_PORT, Engines, Running, load, load_command

Row = dict[str, Any]
_PAUSE_SECONDS: Final = 0.2
_WRONG: Final = ("wrongPulls", "wrongHandOffs", "wrongReleases", "decodeWithoutKV")
_RELEASED_SECONDS: Final = 5.0


class Bench:
    """One run. `rows` are the raw results."""

    def __init__(
        self, folder: Path, say: Callable[[str], None], scenarios: Sequence[str], subjects: Sequence[str]
    ) -> None:
        self.rows: list[Row] = []
        self._folder, self._say = folder, say
        self._scenarios = [each for each in SCENARIOS if each.name in scenarios]
        self._subjects = subjects

    def run(self, rounds: int, *, leak: bool) -> None:
        """Measure everything."""
        with ExitStack() as stack:
            engines = stack.enter_context(Engines())
            running = {
                name: stack.enter_context(Running(MAKERS[name](self._folder), self._folder)) for name in self._subjects
            }
            for each in running.values():
                load("-c 16 -t 0.5 -m 8", each.subject.port)
            for number in range(rounds):
                for scenario in self._scenarios:
                    self._round(number, scenario, running, engines)
                    self._say(f"round {number + 1} of {rounds}: {scenario.name}")
            for name in ("nginx", "duplex"):
                if name in running:
                    self._idle(running[name], engines)
            if leak and "duplex" in running:
                self._leak(running["duplex"], engines)

    def _round(self, number: int, scenario: Scenario, running: Mapping[str, Running], engines: Engines) -> None:
        base: Row = {"round": number, "scenario": scenario.name}
        if scenario.load.startswith("-c 1 "):
            self.rows.append({**base, "subject": "direct", "hop": "decode", **load(scenario.load, DECODE_PORT)})
            self.rows.append({**base, "subject": "direct", "hop": "prefill", **load(scenario.hop, PREFILL_PORT)})
        for name, each in running.items():
            if name in ("nginx", "duplex") or name in scenario.peers:
                hop = "decode" if name == "nginx" else "both"
                self._one({**base, "subject": name, "hop": hop}, scenario.load, scenario.per, each, engines)
            if name == "nginx" and scenario.hop:
                row = {**base, "subject": name, "hop": "prefill"}
                self._one(row, scenario.hop, "done", each, engines, path=PREFILL_PATH)

    def _one(self, row: Row, options: str, per: str, each: Running, engines: Engines, *, path: str = "") -> None:
        time.sleep(_PAUSE_SECONDS)
        counted, cpu = engines.stats(), cpu_seconds(each.process.pid)
        row |= load(options, each.subject.port, path)
        used = cpu_seconds(each.process.pid) - cpu
        after = engines.stats()
        row["engines"] = {key: after[key] - counted[key] for key in after}
        row["cpuSeconds"] = round(used, 6)
        row["cpuMicroseconds"] = round(used * 1e6 / max(row[per], 1), 3)
        self.rows.append(row)
        if row["subject"] == "duplex":
            _check(row)
        elif row["bad"] or row["errors"]:
            self._say(f"{row['subject']} {row['scenario']}: {row['bad']} bad answers, {row['errors']} errors")

    def _idle(self, each: Running, engines: Engines) -> None:
        """Hold many streams open; then have all clients go at once, and see whether the engines hear of it."""
        before = memory_kb(each.process.pid)
        waiting = subprocess.Popen(load_command(IDLE_LOAD, each.subject.port), stdout=subprocess.PIPE, text=True)
        if waiting.stdout is None or waiting.stdout.readline().strip() != "READY":
            waiting.kill()
            raise BenchError(f"{each.subject.name}: not all idle streams began")
        time.sleep(1)
        during, aborts = memory_kb(each.process.pid), engines.stats()["aborts"]
        waiting.kill()
        waiting.wait()
        time.sleep(1)
        self.rows.append(
            {
                "scenario": "d",
                "subject": each.subject.name,
                "kilobytesPerStream": round((during - before) / IDLE_STREAMS, 2),
                "memoryKilobytes": before,
                "abortsPassedOn": engines.stats()["aborts"] - aborts,
                "streams": IDLE_STREAMS,
            }
        )

    def _leak(self, each: Running, engines: Engines) -> None:
        """Serve many turns after a warm-up; then end the router and see what decode still holds."""
        load(LEAK_WARM, each.subject.port)
        memory = [memory_kb(each.process.pid)]
        began = engines.stats()
        row: Row = {"scenario": "leak", "subject": each.subject.name, **load(LEAK_LOAD, each.subject.port)}
        memory.append(memory_kb(each.process.pid))
        after = engines.stats()
        row["engines"] = {key: after[key] - began[key] for key in after}
        row["lapsed"] = _lapsed(each.subject.admin_port)
        each.stop()
        deadline = time.monotonic() + _RELEASED_SECONDS
        while engines.stats()["heldNow"] > row["lapsed"] and time.monotonic() < deadline:
            time.sleep(0.1)
        row |= {"memoryKilobytes": memory, "heldAtTheEnd": engines.stats()["heldNow"]}
        self.rows.append(row)
        _check(row)


def _lapsed(admin_port: int) -> int:
    """Return how many holds our router has let lapse: engines free those by themselves, the fake ones never."""
    with urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/metrics", timeout=5) as answer:
        found = re.search(r'holds_ended_total\{how="lapsed"\} (\d+)', answer.read().decode())
    return int(found[1]) if found else 0


def _check(row: Row) -> None:
    """See that our router's answers were right and its guards at work. Raises BenchError."""
    counts = row["engines"]
    if row.get("heldAtTheEnd", 0) > row.get("lapsed", 0):
        raise BenchError(f"duplex has left {row['heldAtTheEnd']} holds behind, and let {row['lapsed']} lapse")
    wrong = {key: counts[key] for key in _WRONG if counts[key]} | {
        key: row[key] for key in ("bad", "errors") if row[key]
    }
    if wrong:
        raise BenchError(f"duplex, scenario {row['scenario']}: wrong results: {wrong} {row.get('said', '')}")
    if row["scenario"] != "b3" and not counts["pulls"]:
        raise BenchError(f"duplex, scenario {row['scenario']}: nothing was reused")
