"""Each rule of the CRD on the real API server: one object that it accepts and one that it refuses, with its words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from duplex_connector.contract import GROUP, KIND, PLURAL, VERSION
from duplex_kube.api import Resource
from duplex_kube.client import Client
from duplex_kube.errors import InvalidError
from duplex_lab.control_plane import ControlPlane
from duplex_operator.api import DisaggregatedServing, Spec
from operator_tests.api.cel_cases import CASES, Case
from operator_tests.api.objects import MINIMAL_SPEC, serving_object
from operator_tests.render.test_examples import EXAMPLES, load

pytestmark = pytest.mark.apiserver

SERVINGS = Resource(GROUP, VERSION, PLURAL, KIND)

OUT_OF_BOUNDS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("spec.model.id", {"model": {"id": ""}}),
    ("spec.decode", {"decode": None}),
    ("spec.decode.instanceType", {"decode": {"instanceType": None}}),
    ("spec.decode.replicas", {"decode": {"replicas": -1}}),
    ("spec.engine.blockSize", {"engine": {"blockSize": 24}}),
    ("spec.engine.features[0]", {"engine": {"features": ["Unknown"]}}),
    ("spec.engine.env[1]", {"engine": {"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}}),
    ("spec.kvTransfer.bidirectional.ttlSeconds", {"kvTransfer": {"bidirectional": {"ttlSeconds": 5}}}),
    (
        "spec.kvTransfer.bidirectional.retentionBudget.percentOfKV",
        {"kvTransfer": {"bidirectional": {"retentionBudget": {"percentOfKV": 91}}}},
    ),
    ("spec.decode.resources.requests.cpu", {"decode": {"resources": {"requests": {"cpu": "much"}}}}),
)


@pytest.fixture(scope="module")
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """One namespace for all tests here, which use names of their own."""
    control_plane.kubectl("create", "namespace", "test-rules")
    yield "test-rules"
    control_plane.kubectl("delete", "namespace", "test-rules", "--wait=false")


def placed(obj: dict[str, Any], namespace: str) -> dict[str, Any]:
    return obj | {"metadata": obj["metadata"] | {"namespace": namespace}}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
async def test_rule(case: Case, kube_api: Client, namespace: str) -> None:
    await kube_api.create(placed(serving_object(case.name, **case.accepted), namespace), SERVINGS)
    await kube_api.delete(SERVINGS, namespace, case.name)
    with pytest.raises(InvalidError) as refusal:
        await kube_api.create(placed(serving_object(case.refused_name, **case.refused), namespace), SERVINGS)
    assert case.rule in str(refusal.value)


@pytest.mark.parametrize(("field", "change"), OUT_OF_BOUNDS, ids=[field for field, _ in OUT_OF_BOUNDS])
async def test_bounds(field: str, change: dict[str, Any], kube_api: Client, namespace: str) -> None:
    with pytest.raises(InvalidError) as refusal:
        await kube_api.create(placed(serving_object("chat", **change), namespace), SERVINGS)
    assert field in str(refusal.value)


async def test_the_api_server_fills_in_the_defaults_of_the_models(kube_api: Client, namespace: str) -> None:
    stored = await kube_api.create(placed(serving_object("defaults"), namespace), SERVINGS)
    assert stored["spec"] == Spec.model_validate(MINIMAL_SPEC).model_dump(mode="json", by_alias=True, exclude_none=True)
    assert DisaggregatedServing.model_validate(stored).spec == Spec.model_validate(MINIMAL_SPEC)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
async def test_examples_are_accepted(path: Any, kube_api: Client, namespace: str) -> None:
    stored = await kube_api.create(placed(load(path), namespace), SERVINGS)
    assert stored["metadata"]["uid"]
    # Two examples may be of one serving.
    await kube_api.delete(SERVINGS, namespace, stored["metadata"]["name"])


async def test_an_empty_status_is_not_filled_in(kube_api: Client, namespace: str) -> None:
    obj = placed(serving_object("status"), namespace)
    await kube_api.create(obj, SERVINGS)
    written = {key: obj[key] for key in ("apiVersion", "kind", "metadata")} | {"status": {"reuse": {"turns": 3}}}
    stored = await kube_api.apply_status(written, SERVINGS, field_manager="test")
    assert stored["status"] == {"reuse": {"turns": 3}}
