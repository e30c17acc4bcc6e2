"""The fleet from a YAML or JSON file, read again when it changes: a router without Kubernetes."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import yaml

from duplex_router.fleet.document import FleetError, convert_document
from duplex_router.fleet.fleet import Fleet

POLL_SECONDS = 0.5

log = logging.getLogger(__name__)


class FileSource:
    """Feeds a fleet from a file."""

    def __init__(self, fleet: Fleet, path: Path) -> None:
        self._fleet = fleet
        self._path = path
        self._text: str | None = None

    def refresh(self) -> None:
        """Read the file if it has changed. A missing or broken one leaves the last good document in use."""
        try:
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            self._refuse(f"the fleet file cannot be read: {error}")
            self._text = None
            return
        if text == self._text:
            return
        self._text = text
        try:
            document = convert_document(yaml.safe_load(text))
            self._fleet.take_document(document)
        except (yaml.YAMLError, FleetError) as error:
            self._refuse(f"{self._path}: {error}")
        else:
            log.info("fleet document taken from %s", self._path)

    def _refuse(self, why: str) -> None:
        if self._fleet.broken != why:
            log.error("%s; the last good document stays in use", why)
        self._fleet.refuse_document(why)

    async def run(self) -> None:
        """Watch the file until cancelled."""
        while True:
            self.refresh()
            await asyncio.sleep(POLL_SECONDS)
