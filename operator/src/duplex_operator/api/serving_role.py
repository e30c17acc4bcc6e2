"""ServingRole: one role of a serving under a stable name, with the `/scale` that autoscalers and kubectl write."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from duplex_operator.api.base import ApiModel
from duplex_operator.api.status import Count, Text, Word


class ServingRoleSpec(ApiModel):
    """What is asked for."""

    replicas: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Number of engines, of all revisions together. The operator writes it: always with scaling.mode Fixed, only to
    begin with under External."""


class ServingRoleStatus(ApiModel):
    """What is observed."""

    replicas: Count = 0
    """Engine pods that are not on their way out."""
    selector: Word = ""
    """Label selector of the role's pods, for autoscalers."""
    ready: Count = 0
    """Those that are ready."""
    wanted: Count = 0
    """Number of engines that the operator aims at: what is asked for, within the bounds and the ratio."""
    mode: Word | None = None
    """Who decides: Fixed or External."""
    message: Text | None = None
    """Why `wanted` differs from what is asked for."""


class ServingRole(ApiModel):
    """One role of a DisaggregatedServing, made by the operator, to be scaled."""

    spec: ServingRoleSpec = ServingRoleSpec()
    """What is asked for."""
    status: ServingRoleStatus | None = None
    """What is observed."""
