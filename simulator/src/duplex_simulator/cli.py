"""The command `duplex-simulator serve MODEL ...`."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

import uvloop

from .assembly import assemble
from .clock import SystemClock
from .server import run
from .settings import SettingsError, parse


async def _serve(arguments: list[str]) -> int:
    settings = parse(arguments)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return await run(assemble(settings, SystemClock()), stop)


def main() -> None:
    """Run the simulator until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(asctime)s %(name)s: %(message)s")
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    try:
        sys.exit(uvloop.run(_serve(sys.argv[1:])))
    except SettingsError as error:
        sys.exit(f"duplex-simulator: {error}")
