"""One cluster and one installed operator per run; a namespace and a serving per test that wants its own."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from duplex_lab.cluster import Cluster, open_cluster
from duplex_lab.local_cluster import LocalCluster
from harness.conversation import Script, Turn
from harness.crowd import Crowd
from harness.installation import CONTROL_IMAGES, ROOT, install_operator, operator_log
from harness.reference import await_reference, start_reference
from harness.serving import Serving, merged, read_manifest, served_name
from harness.talk import talk
from harness.tally import Tally, table

READY_SECONDS = 240.0
CORRUPT_MARK = "CORRUPT"
QUICKSTART = ROOT / "examples/quickstart.yaml"
# Fast clocks: the scenarios are about answers, not about time.
INSTANT = {"spec": {"engine": {"args": ["--sim-profile=instant"]}}}
TWO_PAIRS: dict[str, Any] = {"spec": {"prefill": {"replicas": 2}, "decode": {"replicas": 2}}}


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Mark every scenario, so that a run without a cluster can leave them out."""
    for item in items:
        if "scenarios" in str(item.path):
            item.add_marker(pytest.mark.lab)
            item.add_marker(pytest.mark.timeout(2400 if item.get_closest_marker("vllm") else 900))


TALLIES: pytest.StashKey[list[Tally]] = pytest.StashKey()
TABLES: pytest.StashKey[dict[str, list[str]]] = pytest.StashKey()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """End with the scenarios' own tables, and what each of them did."""
    for title, lines in config.stash.get(TABLES, {}).items():
        terminalreporter.section(title)
        for line in lines:
            terminalreporter.write_line(line)
    tallies = config.stash.get(TALLIES, [])
    if tallies:
        terminalreporter.section("scenarios")
        for line in table(tallies):
            terminalreporter.write_line(line)


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Tally:
    """Give the counts of this scenario."""
    found = Tally(request.node.name)
    request.config.stash.setdefault(TALLIES, []).append(found)
    return found


ShowTable = Callable[[str, list[str]], None]


@pytest.fixture
def show_table(request: pytest.FixtureRequest) -> ShowTable:
    """Give a function that shows a table under a title at the end of the run."""
    return request.config.stash.setdefault(TABLES, {}).__setitem__


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Give a running cluster with the operator installed; KEEP=1 leaves it up, LAB names it."""
    found = open_cluster(name=os.environ.get("LAB") or "e2e", kind=os.environ.get("CLUSTER") or "local")
    if not os.environ.get("KEEP"):
        found.down()  # a run that was cut off leaves its cluster behind, with the operator and the images of then
    found.up(nodes=2)  # so that one can be drained
    try:
        found.load_images([*CONTROL_IMAGES, "simulator", "store"])
        install_operator(found)
        yield found
    finally:
        if not os.environ.get("KEEP"):
            found.down()


@pytest.fixture
def lab(cluster: Cluster) -> LocalCluster:
    """Give the local lab, to scenarios that reach into its nodes."""
    if not isinstance(cluster, LocalCluster):
        pytest.fail("this scenario needs the local lab: leave CLUSTER unset, or deselect it")
    return cluster


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """Give an empty namespace, deleted afterwards; on failure the operator's last words are printed."""
    name = f"s-{secrets.token_hex(3)}"
    cluster.kubectl("create", "namespace", name)
    failed_before = request.session.testsfailed
    yield name
    if request.session.testsfailed > failed_before:
        print(cluster.kubectl("-n", name, "get", "dsv,pods", "-o", "wide", check=False).stdout)
        print(operator_log(cluster))
    cluster.kubectl("delete", "namespace", name, "--wait=false")


Apply = Callable[..., Serving]


@pytest.fixture
def apply_serving(cluster: Cluster, namespace: str) -> Apply:
    """Give a function that applies the quickstart with changes and waits until it is Ready."""

    def apply(changes: dict[str, Any] | None = None, *, name: str = "chat", ready: bool = True) -> Serving:
        serving = Serving(cluster, namespace, name)
        serving.apply(merged(merged(read_manifest(QUICKSTART), INSTANT), changes or {}))
        if ready:
            serving.wait_ready(seconds=READY_SECONDS)
        return serving

    return apply


@dataclass(frozen=True)
class Talker:
    """Holds conversations with a serving and says what a plain engine answers to the same."""

    cluster: Cluster
    serving: Serving
    plain_url: str
    tally: Tally

    def script(self, **changes: Any) -> Script:  # noqa: ANN401 - any field of Script
        """Return a short conversation with a nonce of its own."""
        base = Script(
            base_url=self.serving.url,
            model=served_name(self.serving.get()),
            nonce=secrets.token_hex(8),
            turns=3,
            first_words=300,
            next_words=120,
            max_tokens=24,
        )
        return replace(base, **changes)

    def begin(self, crowd: Crowd) -> None:
        """Begin three conversations, a turn every two seconds, and let each have a turn or two."""
        for _ in range(3):
            crowd.add(self.script(turns=300, pause_seconds=2, first_words=200, next_words=60, max_tokens=16))
        crowd.listen(6)

    def end(self, crowd: Crowd) -> list[Turn]:
        """Let each conversation have a turn or two more, end and check them, and return their turns."""
        crowd.listen(6)
        return [turn for talk in crowd.end(self.check) for turn in talk]

    def expected(self, script: Script) -> list[str]:
        """Return the plain engine's answers to the same conversation."""
        plain = replace(script, base_url=self.plain_url, pause_seconds=0)
        return [turn.text for turn in talk(self.cluster, plain)]

    def check(self, turns: Sequence[Turn], script: Script) -> None:
        """Assert that every answer is the plain engine's and none carries the simulator's corrupt mark."""
        for turn, expected in zip(turns, self.expected(script), strict=True):
            assert CORRUPT_MARK not in turn.text, turn
            assert turn.text, turn
            assert turn.text == expected, turn
            assert turn.finish_reason in {"stop", "length"}, turn
        self.tally.take(turns)


MakeTalker = Callable[[Serving], Talker]


@pytest.fixture
def talker(cluster: Cluster, tally: Tally) -> MakeTalker:
    """Give a function that makes a Talker for a serving, with its plain engine running."""

    def make(serving: Serving) -> Talker:
        url = start_reference(serving, "plain", seconds=READY_SECONDS)
        await_reference(serving, "plain", seconds=READY_SECONDS)
        return Talker(cluster, serving, url, tally)

    return make


@pytest.fixture
def crowd(cluster: Cluster) -> Iterator[Crowd]:
    """Give a crowd that nobody is in yet."""
    found = Crowd(cluster)
    yield found
    found.kill()
