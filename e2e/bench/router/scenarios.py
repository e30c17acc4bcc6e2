"""The fixed list of what is measured. Changing a row makes earlier figures incomparable."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

PREFILL_PATH: Final = "/p/v1/chat/completions"
"""Where nginx passes a prefill hop on: it does one hop at a time, and both are added up."""


@dataclass(frozen=True)
class Scenario:
    """What the load generator is told (see load.c), and what its cost is counted by.

    `hop`: how nginx's prefill hop of the same request is loaded; empty where one hop has no part in the figure.
    """

    name: str
    meaning: str
    load: str
    per: str = "done"
    hop: str = ""
    peers: frozenset[str] = field(default_factory=frozenset)


_ALL: Final = frozenset({"vllm-router"})
_BOTH: Final = frozenset({"vllm-router", "vllm-example"})

SCENARIOS: Final = (
    Scenario(
        "a", "short turns, 32 clients, chunks back to back", "-c 32 -t 1.5 -m 8", hop="-c 32 -t 1 -N", peers=_BOTH
    ),
    Scenario(
        "a2",
        "short turns, 128 clients, a chunk every 2 ms",
        "-c 128 -t 2 -m 8 -d 2000",
        hop="-c 32 -t 1 -N",
        peers=_BOTH,
    ),
    Scenario("b2", "64 streams, 50 chunks a second each", "-c 64 -n 64 -m 100 -d 20000", per="events", peers=_ALL),
    Scenario("b3", "512 streams, 50 chunks a second each", "-c 512 -n 512 -m 100 -d 20000", per="events", peers=_ALL),
    Scenario(
        "c", "one client, a turn now and then", "-c 1 -t 2 -m 8 -k 2000", hop="-c 1 -t 1.5 -N -k 2000", peers=_BOTH
    ),
    Scenario(
        "e1", "200 kB of history, 8 clients", "-c 8 -t 2 -m 8 -b 200000", hop="-c 8 -t 1.5 -N -b 200000", peers=_ALL
    ),
    Scenario(
        "e2", "2 MB of history, 4 clients", "-c 4 -t 2.5 -m 8 -b 2000000", hop="-c 4 -t 1.5 -N -b 2000000", peers=_ALL
    ),
    Scenario(
        "cs",
        "one client, 200 kB",
        "-c 1 -t 1.5 -m 8 -k 2000 -b 200000",
        hop="-c 1 -t 1 -N -k 2000 -b 200000",
        peers=_ALL,
    ),
    Scenario(
        "cl",
        "one client, 2 MB",
        "-c 1 -t 2 -m 8 -k 2000 -b 2000000",
        hop="-c 1 -t 1.5 -N -k 2000 -b 2000000",
        peers=_ALL,
    ),
)
QUICK: Final = ("a", "a2", "b3", "c", "e1", "e2")

IDLE_STREAMS: Final = 1000
IDLE_LOAD: Final = f"-i -c {IDLE_STREAMS} -m 3 -d 120000000"

LEAK_WARM: Final = "-c 32 -n 20000 -m 8 -r 8"
LEAK_LOAD: Final = "-c 32 -n 100000 -m 8 -r 8"
"""Conversations of eight turns, so that holds are replaced, kept, and released over the budget all along."""
