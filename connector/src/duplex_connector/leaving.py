"""Waits until nobody needs a stopping engine: `python -m duplex_connector.leaving SECONDS`, its pod's preStop hook.

The pod has left its Services by then, and SIGTERM comes when this ends. Until then the engine answers as ever: streams
go on, decode reads hand-offs, what it holds is renewed, pulled by other engines, or lapses. After SIGTERM vLLM takes no
message about holds any more. It asks the engine itself, in its own pod, where no NetworkPolicy stands between.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Sequence
from enum import Enum
from http.client import HTTPException
from typing import Final
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from .contract import Metric, Port

NOTICE_SECONDS: Final = 5.0
"""How long routers may take to hear that the pod has left its Services: as long it waits whatever the engine says."""

POLL_SECONDS: Final = 1.0
ANSWER_SECONDS: Final = 5.0
QUIET_LOOKS: Final = 2
"""So many times in a row nothing must be left: metrics are those of the engine's last step."""

_SAMPLE: Final = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{.*\})?\s+(\S+)", re.MULTILINE)
_BUSY: Final = (Metric.REQUESTS_RUNNING, Metric.REQUESTS_WAITING, Metric.KV_USAGE)
"""Requests, and KV blocks in use: also those of holds and of hand-offs that nobody has read yet (vLLM 0.33,
BlockPool.get_usage). All are 0 once nobody needs the engine."""


class Look(Enum):
    """What one look at the engine found. UNKNOWN: it answers, late or without its metrics, so it may be in use."""

    IN_USE = "in use"
    QUIET = "quiet"
    UNKNOWN = "unknown"
    GONE = "gone"


def judge(page: str) -> Look:
    """Judge an engine by its metrics, a page in Prometheus' text format; several ranks stand on one page."""
    found: dict[str, list[float]] = {}
    for name, value in _SAMPLE.findall(page):
        if name in _BUSY:
            found.setdefault(name, []).append(float(value))
    if len(found) < len(_BUSY):
        return Look.UNKNOWN
    return Look.IN_USE if any(value > 0 for values in found.values() for value in values) else Look.QUIET


def look_at(port: int) -> Look:
    """Ask the engine in this pod, past any proxy that the engine's environment names for its downloads."""
    direct = build_opener(ProxyHandler({}))
    try:
        with direct.open(f"http://127.0.0.1:{port}/metrics", timeout=ANSWER_SECONDS) as answer:
            return judge(answer.read().decode("utf-8", "replace"))
    except URLError as error:
        # Nobody listens: it has ended, or has not come up yet.
        return Look.GONE if isinstance(error.reason, ConnectionRefusedError) else Look.UNKNOWN
    except (OSError, ValueError, HTTPException):
        return Look.UNKNOWN


def wait(
    seconds: float,
    look: Callable[[], Look],
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Look:
    """Wait until nothing is left, at most `seconds` after the notice; return what was found last."""
    sleep(NOTICE_SECONDS)
    end, quiet = now() + seconds, 0
    while True:
        found = look()
        quiet = quiet + 1 if found is Look.QUIET else 0
        if quiet >= QUIET_LOOKS or found is Look.GONE or now() >= end:
            return found
        sleep(POLL_SECONDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; it ends well in any case, since what follows is SIGTERM in any case."""
    parser = argparse.ArgumentParser(prog="duplex_connector.leaving", description=__doc__)
    parser.add_argument("seconds", type=float, help="longest wait")
    parser.add_argument("--port", type=int, default=Port.API, help="the engine's HTTP port")
    options = parser.parse_args(arguments)
    wait(options.seconds, lambda: look_at(options.port))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
