"""The net under the watch of servings: a list now and then, which finds what the watch has missed and says so."""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence

from duplex_kube.api import KubeApi, KubeObject, Selection
from duplex_kube.errors import KubeError
from duplex_operator.reconcile.kinds import SERVINGS
from duplex_operator.reconcile.servings import Key, Servings, key_of
from duplex_operator.runtime.clock import Clock

PERIOD_SECONDS = 300.0
GRACE_SECONDS = 30.0
"""How long the watch may take to bring what the list shows."""

log = logging.getLogger(__name__)


class Resync:
    """Compares ``servings`` with the API server, and mends it. ``on_change`` gets each key that was behind."""

    def __init__(
        self,
        api: KubeApi,
        namespaces: Sequence[str],
        servings: Servings,
        on_change: Callable[[Key], None],
        clock: Clock,
    ) -> None:
        self._api = api
        self._places = [Selection(namespace) for namespace in namespaces] or [Selection()]
        self._servings = servings
        self._on_change = on_change
        self._clock = clock
        self._failures = 0

    async def run(self) -> None:
        """Compare for ever."""
        while True:
            await self._clock.sleep(PERIOD_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311 - spreads load
            try:
                await self.compare()
            except KubeError as error:
                log.warning("list of servings: %s", error)

    async def compare(self) -> None:
        """List, give the watch its time, and take over what it has not brought."""
        listed = [obj for place in self._places for obj in await self._list(place)]
        known = set(self._servings)
        await self._clock.sleep(GRACE_SECONDS)
        missed = [obj for obj in listed if not self._servings.knows(obj)]
        # Of those known before the list and not in it, whatever is still there now was not seen to go.
        lost = (known - {key_of(obj) for obj in listed}) & set(self._servings)
        for obj in missed:
            self._servings.put(obj)
            self._on_change(key_of(obj))
        for key in lost:
            gone = self._servings.get(key)
            if gone is not None:
                self._servings.remove(gone)
                self._on_change(key)
        self._failures = self._failures + 1 if missed or lost else 0
        if self._failures:
            log.warning("the watch of servings missed %d changes", len(missed) + len(lost))

    def problem(self) -> str | None:
        """Say that the watch is dead: it missed changes twice in a row."""
        return "the watch of servings misses changes" if self._failures > 1 else None

    async def _list(self, place: Selection) -> list[KubeObject]:
        found: list[KubeObject] = []
        token = ""
        while True:
            page = await self._api.list(SERVINGS, place, continue_token=token)
            found += page.items
            token = page.continue_token
            if not token:
                return found


async def wait_for_kind(api: KubeApi, namespaces: Sequence[str], clock: Clock) -> None:
    """Wait until servings can be listed: the CRD may be installed together with the operator."""
    place = Selection(namespaces[0]) if namespaces else Selection()
    while True:
        try:
            await asyncio.wait_for(api.list(SERVINGS, place, limit=1), 30)
        except (KubeError, TimeoutError) as error:
            log.warning("servings cannot be listed yet: %s", error)
            await clock.sleep(2)
        else:
            return
