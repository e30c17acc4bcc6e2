"""The API of the operator: models of the resource, its defaults, its rules, and the CRD made from them."""

from duplex_operator.api.base import EnvVar, Problem
from duplex_operator.api.limits import Limits, limits_of
from duplex_operator.api.models import API_VERSION, DisaggregatedServing, Metadata, Spec
from duplex_operator.api.resolve import Resolved, ResolvedRole, resolve
from duplex_operator.api.role import Role
from duplex_operator.api.scaling import ScalingMode
from duplex_operator.api.serving_role import ServingRoleStatus
from duplex_operator.api.status import Condition, ConditionType, Reason, Status
from duplex_operator.api.validate import validate

__all__ = [
    "API_VERSION",
    "Condition",
    "ConditionType",
    "DisaggregatedServing",
    "EnvVar",
    "Limits",
    "Metadata",
    "Problem",
    "Reason",
    "Resolved",
    "ResolvedRole",
    "Role",
    "ScalingMode",
    "ServingRoleStatus",
    "Spec",
    "Status",
    "limits_of",
    "resolve",
    "validate",
]
