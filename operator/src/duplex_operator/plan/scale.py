"""How many engines of each role are wanted, by whoever decides on it, and what the role objects shall say of it.

A role whose scaling is Fixed has what the serving says, and its ServingRole is held to that. With External the
ServingRole's own number rules: it is written once, where it has none, so that the first reader of `/scale` finds the
number to begin with; from then on it is an autoscaler's and never applied again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from duplex_connector.contract import Label, Role
from duplex_operator.api import DisaggregatedServing, ScalingMode, ServingRoleStatus, limits_of
from duplex_operator.api import Role as RoleSpec
from duplex_operator.plan.observed import KubeObject, Observed
from duplex_operator.plan.sizes import Sizes


@dataclass(frozen=True, slots=True)
class Scale:
    """What to write to one ServingRole, known by its uid.

    ``replicas`` None: its number stays as it is. ``version``: write only if nobody has written since; empty: anyhow.
    """

    name: str
    uid: str
    replicas: int | None
    version: str
    status: KubeObject


def asked(serving: DisaggregatedServing, observed: Observed) -> Sizes:
    """Return the sizes that are asked for, by the serving or by autoscalers.

    Where an autoscaler rules and its number is gone with its object (somebody has deleted that, or its CRD), the size
    aimed at before goes on: what `replicas` begins with would take away all that has been added since.
    """
    numbers = {}
    for name, role in _roles(serving):
        seen = observed.roles.get(name)
        external = role.scaling.mode is ScalingMode.EXTERNAL
        number = seen.replicas if seen is not None and external else None
        former = (observed.status.get(name) or {}).get("replicas") if external and observed.workloads else None
        numbers[name] = (former or role.replicas) if number is None else number
    return Sizes(**numbers)


def wanted_sizes(serving: DisaggregatedServing, observed: Observed) -> Sizes:
    """Return the sizes to aim at: what is asked for within the bounds and the ratio, nothing while suspended."""
    if serving.spec.suspend:
        return Sizes()
    return _settled(serving, asked(serving, observed))


def scales(serving: DisaggregatedServing, observed: Observed) -> Iterator[Scale]:
    """Yield what the ServingRoles that are there shall say."""
    wishes, wanted = asked(serving, observed), wanted_sizes(serving, observed)
    for name, role in _roles(serving):
        seen = observed.roles.get(name)
        if seen is None:
            continue
        fixed = role.scaling.mode is ScalingMode.FIXED
        replicas = None
        if fixed and seen.replicas != role.replicas:
            replicas = role.replicas
        elif seen.replicas is None:
            replicas = getattr(_settled(serving, wishes), name)
        # An autoscaler that counts engines on their way out takes the number before its own decision for enough.
        living = [pod for pod in observed.pods if pod.role == name and not pod.terminating and not pod.draining_since]
        status = ServingRoleStatus(
            replicas=len(living),
            selector=f"{Label.SERVING}={serving.name},{Label.ROLE}={name}",
            ready=sum(pod.ready for pod in living),
            wanted=getattr(wanted, name),
            mode=role.scaling.mode.value,
            message=_why(serving, name, getattr(wishes, name), getattr(wanted, name)),
        )
        dumped = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        yield Scale(seen.name, seen.uid, replicas, "" if fixed else seen.version, dumped)


def _roles(serving: DisaggregatedServing) -> tuple[tuple[str, RoleSpec], tuple[str, RoleSpec]]:
    return ((Role.PREFILL.value, serving.spec.prefill), (Role.DECODE.value, serving.spec.decode))


def _settled(serving: DisaggregatedServing, wishes: Sizes) -> Sizes:
    # `validate` has found that the bounds and the ratio can be kept.
    return Sizes(*(limits_of(serving.spec).settle(wishes.prefill, wishes.decode) or (wishes.prefill, wishes.decode)))


def _why(serving: DisaggregatedServing, role: str, wish: int, wanted: int) -> str | None:
    if wish == wanted:
        return None
    if serving.spec.suspend:
        return "suspend is true"
    limits = limits_of(serving.spec)
    own = getattr(limits, role)
    if own.clamp(wish) == wanted:
        return f"{wish} is asked for; spec.{role}.scaling allows {own.least} to {own.most}"
    ratio = serving.spec.scaling.ratio
    span = f" {ratio.min} to {ratio.max}" if ratio else ""
    return f"{wish} is asked for; spec.scaling.ratio{span} of prefill to decode needs {wanted}"
