"""A local copy of some resource, kept true by list and watch: what a reconcile reads instead of asking the server."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, TypeVar

from duplex_kube.api import KubeApi, KubeObject, Resource, Selection
from duplex_kube.errors import GoneError, KubeError

FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 30.0
WATCH_SECONDS = 300
ITEMS_AT_ONCE = 16
"""Objects of a list that are taken in before other tasks have their turn: some milliseconds for each."""

log = logging.getLogger(__name__)

Record = TypeVar("Record")
Key = tuple[str, str]
"""Namespace (empty for cluster-scoped kinds) and name."""


@dataclass(frozen=True, slots=True)
class Change(Generic[Record]):
    """One difference: ``old`` is None for a new object, ``new`` is None for one that is gone."""

    key: Key
    old: Record | None
    new: Record | None


class Reflector(Generic[Record]):
    """Lists in chunks, then watches with bookmarks; lists again only when the server says that history is gone.

    ``trim`` makes the record to keep of an object: keep little. Records that compare equal are no change.
    ``on_change`` runs in the event loop for every difference, those found by a new list included; it must not block
    and must not raise. A broken connection is resumed where it ended, with growing pauses, for ever: the owner reads
    ``age`` to learn that it has been broken for too long.

    Use: ``task = asyncio.create_task(reflector.run())``; ``await reflector.synced.wait()``; read ``reflector.records``.
    """

    def __init__(
        self,
        api: KubeApi,
        resource: Resource,
        selection: Selection,
        *,
        trim: Callable[[KubeObject], Record],
        on_change: Callable[[Change[Record]], None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.resource = resource
        self.selection = selection
        self.synced = asyncio.Event()
        self._api = api
        self._trim = trim
        self._on_change = on_change
        self._clock = clock
        self._sleep = sleep
        self._records: dict[Key, Record] = {}
        self._resource_version = ""
        self._heard = clock()
        self._events = 0

    @property
    def records(self) -> Mapping[Key, Record]:
        """The copy, read-only. Complete once ``synced`` is set; empty before."""
        return MappingProxyType(self._records)

    def age(self) -> float:
        """Seconds since the server last said anything: a list, an event, a bookmark, or an orderly end of a watch."""
        return self._clock() - self._heard

    async def run(self) -> None:
        """Keep the copy true until cancelled."""
        self._heard = self._clock()
        failures = 0
        while True:
            events_before = self._events
            try:
                if not self._resource_version:
                    await self._list()
                await self._watch()
                failures = 0
            except KubeError as error:
                # A stream that brought events before it broke was a good one; a list alone does not make it so.
                failures = 1 if self._events > events_before else failures + 1
                if isinstance(error, GoneError):
                    self._resource_version = ""
                log.warning("watch of %s, failure %d: %s", self.resource.plural, failures, error)
            await self._sleep(_pause(failures))

    async def _list(self) -> None:
        found: dict[Key, Record] = {}
        token = ""
        while True:
            page = await self._api.list(self.resource, self.selection, continue_token=token)
            self._heard = self._clock()
            for number, item in enumerate(page.items):
                found[_key(item)] = self._trim(item)
                if number % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
                    await asyncio.sleep(0)
            token = page.continue_token
            if not token:
                break
        for key in self._records.keys() - found.keys():
            self._set(key, None)
        for key, record in found.items():
            self._set(key, record)
        self._resource_version = page.resource_version
        self.synced.set()

    async def _watch(self) -> None:
        events = self._api.watch(
            self.resource,
            self.selection,
            resource_version=self._resource_version,
            # Spread, so that many watches opened together do not end together.
            timeout_seconds=round(WATCH_SECONDS * random.uniform(0.8, 1.2)),  # noqa: S311 - guards nothing
        )
        async with aclosing(events):
            async for event in events:
                self._heard = self._clock()
                self._events += 1
                if event.type == "DELETED":
                    self._set(_key(event.object), None)
                elif event.type != "BOOKMARK":
                    self._set(_key(event.object), self._trim(event.object))
                self._resource_version = event.object["metadata"]["resourceVersion"]
        self._heard = self._clock()

    def _set(self, key: Key, record: Record | None) -> None:
        old = self._records.get(key)
        if record == old:
            return
        if record is None:
            del self._records[key]
        else:
            self._records[key] = record
        self._on_change(Change(key, old, record))


def _key(obj: KubeObject) -> Key:
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _pause(failures: int) -> float:
    grown: float = min(FIRST_PAUSE_SECONDS * 2 ** min(failures, 16), LONGEST_PAUSE_SECONDS)
    return grown * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing
