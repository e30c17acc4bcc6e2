"""Small builders for values that decisions are made on."""

from collections.abc import Mapping
from typing import Any

from duplex_operator.api import DisaggregatedServing
from duplex_operator.plan import Observed, Pod, RouterStats, Wanted, Workload
from duplex_operator.render import RenderContext, fleet_name, render_serving, revision_of, router_url

CONTEXT = RenderContext(router_image="router:1", connector_image="connector:1", operator_version="0.1.0")


def serving(name: str = "chat", **spec: Any) -> DisaggregatedServing:
    base: dict[str, Any] = {
        "model": {"id": "tiny"},
        "engine": {"image": "engine:0.33.0"},
        "prefill": {"instanceType": "cpu"},
        "decode": {"instanceType": "cpu"},
    }
    metadata = {"name": name, "namespace": "n", "uid": "u1", "generation": 3}
    return DisaggregatedServing.model_validate(
        {"apiVersion": "duplex.dev/v1alpha1", "kind": "DisaggregatedServing", "metadata": metadata, "spec": base | spec}
    )


def wanted(of: DisaggregatedServing | None = None, context: RenderContext = CONTEXT) -> Wanted:
    of = of or serving()
    return Wanted(
        serving=of,
        revision=revision_of(of.spec),
        rendered=tuple(render_serving(of, context)),
        fleet_name=fleet_name(of.name),
        url=router_url(of, context),
    )


def engines(
    revision: str, *, ready: int = 1, replicas: int = 1, created: str = "2026-01-01T00:00:00Z"
) -> list[Workload]:
    """Make the Deployments of both roles of a revision."""
    return [
        Workload(
            name=f"chat-{role}-{revision}",
            role=role,
            revision=revision,
            created=created,
            replicas=replicas,
            ready=ready,
            updated=replicas,
            settled=True,
            refused="",
        )
        for role in ("prefill", "decode")
    ]


def router_pod(name: str = "router-0") -> Pod:
    return Pod(name, "router", "", "10.0.0.1", ready=True, terminating=False, trouble=None)


def router(ready: int = 1) -> Workload:
    return Workload("chat-router", "router", "", "", 1, ready, 1, settled=True, refused="")


def fleet(weights: Mapping[str, int], version: tuple[int, int] = (1, 1)) -> dict[str, Any]:
    return {
        "version": list(version),
        "revisions": [{"name": name, "weight": weight} for name, weight in weights.items()],
    }


def serving_well(revision: str, **changes: Any) -> Observed:
    """Observe one revision that runs and serves."""
    values: dict[str, Any] = {
        "workloads": tuple(engines(revision)),
        "router": router(),
        "pods": (router_pod(),),
        "fleet": fleet({revision: 100}),
        "stats": {"router-0": RouterStats(fleet_version=(1, 1), served_tokens={revision: 5})},
    }
    return Observed(**(values | changes))
