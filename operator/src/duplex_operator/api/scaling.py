"""Who decides on the numbers of engines, and within which bounds: spec.scaling and the scaling of each role."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from duplex_operator.api.base import ApiModel, Rule, with_rules


class ScalingMode(StrEnum):
    """Who decides on the number of engines."""

    FIXED = "Fixed"
    EXTERNAL = "External"


class Scaling(ApiModel):
    """Who decides on the number of engines of this role."""

    model_config = with_rules(
        Rule(
            "self.mode == 'External' || (!has(self.minReplicas) && !has(self.maxReplicas))",
            "scaling: minReplicas and maxReplicas bound what an autoscaler asks for: set mode External, or remove them",
        ),
        Rule(
            "!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
            "scaling: minReplicas must not be above maxReplicas",
        ),
    )

    mode: ScalingMode = ScalingMode.FIXED
    """Fixed: `replicas` rules. External: the scale of the ServingRole `<serving>-<role>` rules, which `kubectl scale`,
    an HPA or KEDA writes; `replicas` is what it begins with, and is never applied again."""
    min_replicas: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Least number of engines, with External. Left out: 1."""
    max_replicas: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Greatest number of engines, with External. Left out: as many as NIXL can address."""


RatioText = Annotated[str, Field(min_length=3, max_length=9, pattern=r"^[1-9][0-9]{0,3}:[1-9][0-9]{0,3}$")]
"""Prefill engines to decode engines, such as 1:4."""


class Ratio(ApiModel):
    """Bounds of prefill engines per decode engine."""

    model_config = with_rules(
        Rule(
            "int(self.min.split(':')[0]) * int(self.max.split(':')[1])"
            " <= int(self.max.split(':')[0]) * int(self.min.split(':')[1])",
            "scaling.ratio: min must not be above max",
        )
    )

    min: RatioText
    """Fewest prefill engines to decode engines, such as 1:4."""
    max: RatioText
    """Most prefill engines to decode engines, such as 1:1."""


class ServingScaling(ApiModel):
    """Scaling of the roles together."""

    ratio: Ratio | None = None
    """Bounds of prefill engines per decode engine. Where autoscalers ask for sizes outside, the role that is too small
    gets more engines; where its bounds forbid that, the other one fewer."""
