"""Both vendors' clients against real vLLM through the router: every answer is the plain engine's."""

from __future__ import annotations

import secrets

import pytest

from duplex_lab.cluster import Cluster
from harness.clients import TURNS, Comparison, run, table
from harness.installation import ROOT
from harness.reference import await_reference, start_reference
from harness.serving import Serving, merged, read_manifest, served_name
from harness.tally import Tally

from .conftest import ShowTable

VLLM = ROOT / "examples/quickstart-vllm.yaml"
ENGINE_IMAGE = "engine-cpu"
START_SECONDS = 1200.0

HISTORIES = [
    (api, f"a conversation, {manner}")
    for api in ("chat", "completions", "responses", "messages")
    for manner in ("whole", "streamed")
]


@pytest.fixture
def real(cluster: Cluster, namespace: str) -> Comparison:
    """Give a serving of real engines with a plain one beside it, both ready."""
    cluster.load_images([ENGINE_IMAGE])
    serving = Serving(cluster, namespace, "real")
    serving.apply(merged(read_manifest(VLLM), cluster.pod_additions(ENGINE_IMAGE)))
    plain = start_reference(serving, "plain", seconds=START_SECONDS)
    serving.wait_ready(seconds=START_SECONDS)
    await_reference(serving, "plain", seconds=START_SECONDS)
    return Comparison(serving.url, plain, served_name(serving.get()), secrets.token_hex(8))


@pytest.mark.vllm
def test_both_vendors_clients_get_what_a_plain_engine_gives(
    cluster: Cluster, real: Comparison, tally: Tally, show_table: ShowTable
) -> None:
    """Equal answers but for ids, times and cache counts; later turns pull all that the API's history lets be found."""
    found = run(cluster, real)
    show_table("clients on real vLLM", table(found))
    assert not [each for each in found if each.difference]

    turns = {(each.api, each.case, each.turn): each.reuse for each in found if each.turn}
    assert turns == {
        (api, case, turn): "full" if turn > 1 else "miss" for api, case in HISTORIES for turn in range(1, TURNS + 1)
    }
    tally.turns += len(found)
    tally.later += sum(turn > 1 for _, _, turn in turns)
    tally.kept += sum(reuse == "full" for reuse in turns.values())
