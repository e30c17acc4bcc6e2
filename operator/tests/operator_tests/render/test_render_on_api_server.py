"""Everything that the examples render, on the real API server: taken as it is, and the second time unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duplex_connector.contract import GROUP, KIND, PLURAL, VERSION
from duplex_kube.api import Resource
from duplex_kube.client import Client
from duplex_operator.api import DisaggregatedServing
from duplex_operator.render import CHILD_KINDS, FleetRevision, render_fleet, render_serving, revision_of
from operator_tests.render.test_examples import CONTEXT, EXAMPLES, load

pytestmark = pytest.mark.apiserver

SERVINGS = Resource(GROUP, VERSION, PLURAL, KIND)


def resource_of(child: dict[str, Any]) -> Resource:
    kind = next(
        known for known in CHILD_KINDS if (known.api_version, known.kind) == (child["apiVersion"], child["kind"])
    )
    group, _, version = kind.api_version.rpartition("/")
    return Resource(group, version, kind.plural, kind.kind)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
async def test_applies_and_applies_again_unchanged(path: Path, kube_api: Client, namespace: str) -> None:
    example = load(path)
    example["metadata"]["namespace"] = namespace
    # Suspended, so that no pod is made: this is about the objects.
    example["spec"] |= {"suspend": True, "podDisruptionBudget": {"enabled": True}}
    serving = DisaggregatedServing.model_validate(await kube_api.create(example, SERVINGS))
    fleet = render_fleet(serving, [FleetRevision(revision_of(serving.spec))], (1, 1), [])
    for child in [*render_serving(serving, CONTEXT), fleet]:
        first = await kube_api.apply(child, resource_of(child), field_manager="test")
        again = await kube_api.apply(child, resource_of(child), field_manager="test")
        name = f"{child['kind']} {child['metadata']['name']}"
        assert again["metadata"].get("generation") == first["metadata"].get("generation"), name
        assert list(lost(first, child)) == [], name


def lost(stored: object, rendered: object, path: str = "") -> Iterator[str]:
    """Yield the paths of what was rendered and the API server did not keep; what it adds does not matter."""
    if isinstance(rendered, dict) and isinstance(stored, dict):
        for key, value in rendered.items():
            yield from lost(stored.get(key), value, f"{path}.{key}")
    elif isinstance(rendered, list) and isinstance(stored, list) and len(rendered) == len(stored):
        for index, value in enumerate(rendered):
            yield from lost(stored[index], value, f"{path}[{index}]")
    # The API server writes quantities as text.
    elif stored != rendered and str(stored) != str(rendered):
        yield f"{path}: {rendered!r} became {stored!r}"
