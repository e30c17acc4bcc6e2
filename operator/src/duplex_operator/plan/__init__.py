"""Decisions: from what is wanted and what is observed to what to write. Pure: values in, values out, no clock.

``plan`` is the entry; ``Observed`` its input beside the serving, ``Plan`` its output.
"""

from duplex_operator.plan.conditions import EventDraft
from duplex_operator.plan.decide import KEPT_KIND, Plan, Wanted, plan, plan_stalled, stalled
from duplex_operator.plan.drain import Mark
from duplex_operator.plan.fleet import next_fleet
from duplex_operator.plan.healing import Restart
from duplex_operator.plan.observed import ChildRef, Observed, Pod, RoleObject, RouterStats, Workload
from duplex_operator.plan.pods import pod_of
from duplex_operator.plan.rollout import FleetContent
from duplex_operator.plan.scale import Scale
from duplex_operator.plan.stats import parse_stats

__all__ = [
    "KEPT_KIND",
    "ChildRef",
    "EventDraft",
    "FleetContent",
    "Mark",
    "Observed",
    "Plan",
    "Pod",
    "Restart",
    "RoleObject",
    "RouterStats",
    "Scale",
    "Wanted",
    "Workload",
    "next_fleet",
    "parse_stats",
    "plan",
    "plan_stalled",
    "pod_of",
    "stalled",
]
