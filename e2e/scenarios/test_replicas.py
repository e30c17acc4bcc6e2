"""A serving with several router replicas that share their ledger: any of them goes on with any conversation."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest

from duplex_lab.cluster import Cluster
from harness.conversation import Turn, ask, prose
from harness.serving import Serving
from harness.store import NAME as STORE
from harness.store import await_store, start_store

from .conftest import CORRUPT_MARK, READY_SECONDS, Apply, Talker

ROUTER = "router"


@dataclass
class Talk:
    """One conversation, turn by turn, each through the router that the test says."""

    cluster: Cluster
    talker: Talker
    script: Any = field(init=False)
    messages: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin."""
        self.script = self.talker.script(nonce=secrets.token_hex(8))

    def turn(self, address: str) -> Turn:
        """Say something more to one server, and check its answer by the plain engine's."""
        number = len(self.messages) // 2 + 1
        words = self.script.first_words if number == 1 else self.script.next_words
        self.messages.append({"role": "user", "content": prose(self.script.nonce, number, words)})
        answered = self._ask(address, number)
        expected = self._ask(self.talker.plain_url.removeprefix("http://"), number)
        assert CORRUPT_MARK not in answered.text
        assert answered.text == expected.text
        assert answered.text
        self.talker.tally.take([answered])
        self.messages.append({"role": "assistant", "content": answered.text})
        return answered

    def _ask(self, address: str, number: int) -> Turn:
        with (
            self.cluster.forward(address) as port,
            openai.OpenAI(
                base_url=f"http://127.0.0.1:{port}/v1", api_key=self.script.nonce, timeout=120, max_retries=0
            ) as client,
        ):
            return ask(client, self.script, self.messages, number)


def routers(serving: Serving, *, count: int, without: Sequence[str] = ()) -> dict[str, str]:
    """Wait for so many ready router pods that are not among `without`; return their addresses by name."""

    def ready() -> dict[str, str] | None:
        found = {}
        for pod in serving.list("pods", role=ROUTER):
            conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", [])}
            ends = pod["metadata"].get("deletionTimestamp")
            if conditions.get("Ready") == "True" and not ends and pod["metadata"]["name"] not in without:
                found[pod["metadata"]["name"]] = f"{pod['status']['podIP']}:8000"
        return found if len(found) == count else None

    return serving.wait(ready, seconds=READY_SECONDS, what=f"{count} ready routers")


@pytest.fixture
def shared(cluster: Cluster, namespace: str, apply_serving: Apply) -> Serving:
    """Give a serving with two routers and a store between them."""
    url = start_store(cluster, namespace, seconds=READY_SECONDS)
    return apply_serving({"spec": {"router": {"replicas": 2, "sessionStore": {"url": url}}}})


def test_a_conversation_alternates_between_routers_and_outlives_one_of_them_and_the_store(
    cluster: Cluster, shared: Serving, talker: Callable[[Serving], Talker]
) -> None:
    """Each turn comes to the other router and reuses; no turn fails while a router, then the store, is gone."""
    talk = Talk(cluster, talker(shared))
    pods = routers(shared, count=2)
    addresses = list(pods.values())
    turns = [talk.turn(addresses[number % 2]) for number in range(4)]
    assert turns[0].reuse == "miss"
    assert all(turn.pulled_tokens for turn in turns[1:]), turns

    killed = next(iter(pods))
    shared.kubectl("delete", "pod", killed, "--grace-period=0", "--force", "--wait=false")
    talk.talker.tally.kills += 1
    survivor = next(address for name, address in pods.items() if name != killed)
    assert talk.turn(survivor).pulled_tokens, "what the dead router had held is found by the other"
    addresses = list(routers(shared, count=2, without=[killed]).values())
    assert all(talk.turn(address).pulled_tokens for address in addresses), "the new router finds it too"

    cluster.kubectl("-n", shared.namespace, "scale", f"deployment/{STORE}", "--replicas=0")
    for number in range(4):
        talk.turn(addresses[number % 2])
    cluster.kubectl("-n", shared.namespace, "scale", f"deployment/{STORE}", "--replicas=1")
    await_store(cluster, shared.namespace, seconds=READY_SECONDS)

    def reused() -> Turn | None:
        for address in addresses:
            last = talk.turn(address)
        return last if last.pulled_tokens else None

    shared.wait(reused, seconds=60, what="turns that alternate and reuse")
