"""Fixtures: the engines that a check's variant asks for, one set at a time, and the report."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from .checks import is_alive
from .report import Report
from .simulator import Simulator
from .turns import Turns
from .variants import Provider, Running, Variant

_BUILD: Final = Path(__file__).parents[2] / "build" / "conformance"
_REPORT: Final = pytest.StashKey[Report]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --engine and --out."""
    parser.addoption("--engine", default="simulator", choices=("simulator", "vllm"), help="which engines to check")
    parser.addoption("--out", type=Path, help="where the table goes, without suffix (build/conformance/ENGINE)")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run next to one another the checks whose variants share engines, so that the fewest are started."""
    items.sort(key=lambda item: _neighbours(getattr(item, "callspec", None)))


def _neighbours(callspec: Any) -> tuple[str | bool, ...]:  # noqa: ANN401 - pytest's CallSpec2 is not public
    variant = callspec.params.get("variant") if callspec is not None else None
    if not isinstance(variant, Variant):
        return ()
    model = (variant.family.value, variant.adapters, variant.lossy)
    decode = (not variant.role_is_both, variant.ttl_seconds != Variant.ttl_seconds)
    prefill = (variant.prefill_caching, not variant.prefill_pulls, variant.recompute is not None, variant.small_prefill)
    return (*model, variant.connector.value, *decode, *prefill)


class Manager:
    """Keeps the engines of one variant at a time: real ones need gigabytes and half a minute."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._variant: Variant | None = None
        self._running: Running | None = None

    def get(self, variant: Variant) -> Running:
        """Return the variant's engines; started anew where others ran, or where a check left one of these dead."""
        if self._running is None or self._variant != variant or not self._all_alive(self._running):
            self.close()
            self._running, self._variant = self._provider.start(variant), variant
        return self._running

    @staticmethod
    def _all_alive(running: Running) -> bool:
        return all(map(is_alive, (running.prefill, running.decode)))

    def close(self) -> None:
        """End what runs."""
        if self._running is not None:
            self._running.close()
            self._running = None


@pytest.fixture(scope="session")
def provider(request: pytest.FixtureRequest) -> Iterator[Provider]:
    """Return the provider that `--engine` names."""
    logs = _BUILD / "logs"
    if request.config.getoption("--engine") == "vllm":
        from .vllm import RealEngines  # noqa: PLC0415 - needs the engine environment

        with RealEngines(logs) as real:
            yield real
    else:
        with Simulator(logs) as simulated:
            yield simulated


@pytest.fixture(scope="session")
def manager(provider: Provider) -> Iterator[Manager]:
    """Keep engines over the checks of a variant."""
    keeper = Manager(provider)
    yield keeper
    keeper.close()


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest) -> Report:
    """Return the table; it is written when the session ends, also after failures and interrupts."""
    return request.config.stash[_REPORT]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note how each check ended; one whose engines did not start has failed too."""
    ended = yield
    callspec = getattr(item, "callspec", None)
    if callspec is not None and (ended.when == "call" or ended.failed):
        connector = callspec.params["variant"].connector.value.lower()
        item.config.stash[_REPORT].end(item.name, connector, passed=ended.passed)
    return ended


def pytest_configure(config: pytest.Config) -> None:
    """Begin the table."""
    config.stash[_REPORT] = Report(config.getoption("--engine"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the table, where there is anything in it."""
    collected = session.config.stash[_REPORT]
    if collected.rows:
        collected.write(session.config.getoption("--out") or _BUILD / collected.engine)


@pytest.fixture(scope="session")
def variant(request: pytest.FixtureRequest) -> Variant:
    """Return a check's variant; session scope makes pytest run the checks of a variant together."""
    chosen: Variant = request.param
    return chosen


@pytest.fixture
def turns(manager: Manager, variant: Variant, report: Report) -> Iterator[Turns]:
    """Return a client of the variant's engines."""
    engines = manager.get(variant)
    report.version = engines.facts.version
    with Turns(engines) as client:
        yield client
