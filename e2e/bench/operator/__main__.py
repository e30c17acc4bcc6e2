"""`python -m bench.operator`: how the operator fares with a thousand servings on a real API server."""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.router.machine import BenchError, description, enter_namespace
from duplex_lab.errors import LabError
from duplex_lab.paths import REPOSITORY
from duplex_lab.programs import ensure_programs
from duplex_lab.progress import Progress

from .processes import Kept, Operator, StuckError, account, wait_for, writes
from .routers import SICK
from .world import PODS_EACH, Key, World, keys_of, running

OUTPUT: Final = REPOSITORY / "docs" / "benchmarks" / "operator.json"
SERVINGS: Final = 1000
EDITS: Final = 200
IDLE_SECONDS: Final = 120.0
PATIENCE_SECONDS: Final = 3600.0
AFTERMATH_SECONDS: Final = 20.0
REST_SECONDS: Final = 10.0
STANDING_BY_SECONDS: Final = 10.0


@dataclass
class Bench:
    """Measures step by step; `figures` holds what was found, `rows` each single measurement."""

    world: World
    keys: list[Key]
    idle_seconds: float
    progress: Progress
    figures: dict[str, float] = field(default_factory=dict)
    rows: dict[str, list[Any]] = field(default_factory=dict)
    _ttl: int = 480

    def run(self) -> None:
        """Do all steps."""
        cluster = self.world.cluster
        accounts = {name: account(cluster, name) for name in ("first", "second", "third")}
        first = Kept(lambda: Operator.start(cluster, "first", accounts["first"], 8081))
        self.create(first)
        first.operator.stop()
        second = Kept(lambda: Operator.start(cluster, "second", accounts["second"], 8082))
        self.start(second.operator)
        self.idle(second.operator)
        self.edits()
        self.restarted_api(second)
        third = Operator.start(cluster, "third", accounts["third"], 8083)
        self.failover(second.operator, third)
        third.stop()

    def create(self, kept: Kept) -> None:
        """Bring all servings up from nothing, for which the cluster's own controllers need most of the machine.

        An operator may end over it: it cannot renew its lease in time.
        """
        began = time.monotonic()
        self.world.put_all(self.keys)
        self.progress.say(f"{len(self.keys)} servings applied; their pods start")
        shown = 0

        def ready() -> bool:
            nonlocal shown
            kept.tend()
            count = self.world.serving()
            if count >= shown + len(self.keys) // 10:
                shown = count
                self.progress.say(f"{count} servings are Ready")
            time.sleep(2)
            return count >= len(self._well())

        wait_for(ready, PATIENCE_SECONDS, "all servings Ready")
        self.figures["createSeconds"] = time.monotonic() - began
        self.figures["createRestarts"] = kept.restarts
        self.figures["createCpuSeconds"] = kept.operator.cpu_seconds()

    def _well(self) -> list[Key]:
        return [key for key in self.keys if not key[1].startswith(SICK)]

    def start(self, operator: Operator) -> None:
        """Start an operator on what runs already, until it has looked at everything and neither waits nor writes."""
        began = changed = time.monotonic()
        written = 0.0

        def rests() -> bool:
            nonlocal changed, written
            time.sleep(0.4)
            now, wrote = time.monotonic(), operator.metric("writes_total")
            if wrote != written or not operator.steady(len(self.keys)):
                changed, written = now, wrote
            return now - changed >= REST_SECONDS

        wait_for(rests, PATIENCE_SECONDS, "a steady operator")
        self.figures["startSeconds"] = changed - began
        self.figures["startWrites"] = written
        self.figures["startCpuSeconds"] = operator.cpu_seconds()
        self.progress.say(f"an operator that starts is steady after {self.figures['startSeconds']:.1f} s")

    def idle(self, operator: Operator) -> None:
        """Let nothing happen for a while."""
        time.sleep(30)
        count, cpu, began = len(list(writes(self.world.cluster))), operator.cpu_seconds(), time.monotonic()
        time.sleep(self.idle_seconds)
        seconds = time.monotonic() - began
        done = len(list(writes(self.world.cluster))) - count
        self.figures["idlePercent"] = 100 * (operator.cpu_seconds() - cpu) / seconds
        self.figures["idleWritesPerServingMinute"] = done / len(self.keys) / (seconds / 60)
        self.figures["peakMb"] = operator.peak_mb()
        self.progress.say(f"idle: {self.figures['idlePercent']:.1f} % of a core, {done} writes in {seconds:.0f} s")

    def _edit(self, key: Key, seconds: float = 60.0, tend: Callable[[], None] = lambda: None) -> float:
        """Edit a serving and return after how many seconds its routers were told; `tend` is called meanwhile."""
        self._ttl += 1
        ttl = self._ttl
        began = self.world.edit(key, ttl)

        def told() -> bool:
            tend()
            return self.world.told(key, ttl) is not None

        wait_for(told, seconds, f"edit of {key[1]}")
        return (self.world.told(key, ttl) or 0.0) - began

    def edits(self) -> None:
        """Edit servings one after another, while the sick ones hold workers up."""
        well = self._well()
        chosen = [well[number * len(well) // EDITS] for number in range(min(EDITS, len(well)))]
        seconds = [self._edit(key) for key in dict.fromkeys(chosen)]
        self.rows["editSeconds"] = [round(each, 4) for each in seconds]
        self.figures["editP50"] = statistics.median(seconds)
        self.figures["editP99"] = statistics.quantiles(seconds, n=100)[98]
        self.progress.say(
            f"an edit reaches routers after {self.figures['editP50']:.3f} s, p99 {self.figures['editP99']:.3f} s"
        )

    def restarted_api(self, kept: Kept) -> None:
        """Kill the API server; measure the first edit after it is back.

        An operator that could not renew its lease so long ends, and its next life does the edit.
        """
        began = time.monotonic()
        self.world.cluster.restart("kube-apiserver")
        self.figures["apiServerGoneSeconds"] = time.monotonic() - began
        self.figures["editAfterRestart"] = self._edit(self._well()[0], seconds=300, tend=kept.tend)
        self.figures["restartsByApiServer"] = kept.restarts
        self.progress.say(f"after a restart of the API server an edit takes {self.figures['editAfterRestart']:.2f} s")

    def failover(self, leader: Operator, other: Operator) -> None:
        """Freeze the leader, wait for the other's first write, thaw the frozen one, and see that it writes nothing."""
        wait_for(lambda: other.ready() and not other.leads(), 120, "a second operator")
        time.sleep(STANDING_BY_SECONDS)
        leader.process.send_signal(signal.SIGSTOP)
        self.figures["failoverSeconds"] = self._edit(self._well()[1], seconds=120)
        first = min(write.at for write in writes(self.world.cluster) if write.who == other.name)
        leader.process.send_signal(signal.SIGCONT)
        time.sleep(AFTERMATH_SECONDS)
        late = [write for write in writes(self.world.cluster) if write.who == leader.name and write.at > first]
        self.figures["doubleWrites"] = len(late)
        self.rows["doubleWrites"] = [f"{write.at} {write.what}" for write in late]
        if leader.process.poll() is None:
            raise StuckError("an operator that lost its lease goes on running")
        self.progress.say(
            f"another leads after {self.figures['failoverSeconds']:.1f} s; the old one wrote {len(late)} times"
        )

    def last_line(self) -> str:
        """Return the figures in one line."""
        found = self.figures
        return (
            f"operator: {len(self.keys)} servings {len(self.keys) * PODS_EACH} pods "
            f"ready {found['startSeconds']:.0f} s, "
            f"rss {found['peakMb']:.0f} MB, idle {found['idlePercent']:.1f} %, edit p99 {found['editP99']:.2f} s, "
            f"failover {found['failoverSeconds']:.0f} s"
        )


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m bench.operator", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100 servings and short waits; nothing is written")
    parser.add_argument("--servings", type=int, help="so many with --quick")
    options = parser.parse_args()
    progress = Progress()
    try:
        ensure_programs(progress)  # in the namespace there is no network to get them with
        enter_namespace("bench.operator", sys.argv[1:])
        with tempfile.TemporaryDirectory(prefix="duplex-bench-") as folder, running(Path(folder)) as world:
            keys = keys_of((options.servings or SERVINGS // 10) if options.quick else SERVINGS)
            bench = Bench(world, keys, IDLE_SECONDS / 4 if options.quick else IDLE_SECONDS, progress)
            bench.run()
    except (BenchError, LabError, StuckError) as error:
        print(f"bench-operator: {error}", file=sys.stderr)
        return 1
    if not options.quick:
        document = {"machine": description(), "figures": bench.figures, "rows": bench.rows}
        OUTPUT.write_text(json.dumps(document, indent=1) + "\n")
    print(bench.last_line())
    return 0


if __name__ == "__main__":
    sys.exit(main())
