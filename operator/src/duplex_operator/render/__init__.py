"""Pure rendering: from a serving to the Kubernetes objects that run it. No clock, no network, no randomness.

The serving has passed `duplex_operator.api.validate`. Objects carry only fields that the operator owns, so that they
can be applied as they are (server-side apply).
"""

from typing import Any

from duplex_operator.api import DisaggregatedServing
from duplex_operator.render.engines import render_disruption_budgets, render_engines, render_roles
from duplex_operator.render.fleet import FleetRevision, fleet_document, render_fleet
from duplex_operator.render.names import (
    CHILD_KINDS,
    ChildKind,
    RenderContext,
    engine_name,
    fleet_name,
    router_name,
    router_url,
)
from duplex_operator.render.policies import render_policies
from duplex_operator.render.revision import revision_of
from duplex_operator.render.router import render_router

__all__ = [
    "CHILD_KINDS",
    "ChildKind",
    "FleetRevision",
    "RenderContext",
    "engine_name",
    "fleet_document",
    "fleet_name",
    "render_engines",
    "render_fleet",
    "render_router",
    "render_serving",
    "revision_of",
    "router_name",
    "router_url",
]


def render_serving(serving: DisaggregatedServing, context: RenderContext) -> list[dict[str, Any]]:
    """Return every child of a serving except the fleet document, whose version only the operator's state knows.

    Engines are those of the revision that the spec describes now. An operator that comes with other images renders
    other engine templates under the same revision: whoever applies them keeps the template of a running revision.
    """
    return [
        *render_router(serving, context),
        *render_roles(serving, context.operator_version),
        *render_engines(serving, context, revision_of(serving.spec)),
        *(
            render_disruption_budgets(serving, context.operator_version)
            if serving.spec.pod_disruption_budget.enabled
            else ()
        ),
        *(render_policies(serving, context) if serving.spec.network_policy.enabled else ()),
    ]
