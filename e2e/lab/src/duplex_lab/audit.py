"""What service accounts asked of the API server, from its audit log: the proof that rights are enough and all used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

POLICY: Final[dict[str, Any]] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        # The cluster's own controllers, which ask all the time.
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
        {"level": "None"},
    ],
}

_DECISION: Final = "authorization.k8s.io/decision"


@dataclass(frozen=True)
class Request:
    """One request. `user` as system:serviceaccount:NAMESPACE:NAME; `resource` with its subresource, if any."""

    user: str
    verb: str
    group: str
    resource: str
    namespace: str
    name: str
    status: int
    forbidden: bool
    """The account has no right to do this; a 403 may also say that the namespace is being deleted."""


def requests(log: Path) -> Iterator[Request]:
    """Yield the requests for objects in an audit log, the earliest first; a watch stands there twice."""
    for line in log.read_text().splitlines() if log.exists() else ():
        entry = json.loads(line)
        target = entry.get("objectRef") or {}
        resource = target.get("resource", "")
        if resource:
            yield Request(
                user=entry["user"]["username"],
                verb=entry["verb"],
                group=target.get("apiGroup", ""),
                resource="/".join(part for part in (resource, target.get("subresource", "")) if part),
                namespace=target.get("namespace", ""),
                name=target.get("name", ""),
                status=int((entry.get("responseStatus") or {}).get("code", 0)),
                forbidden=entry.get("annotations", {}).get(_DECISION) == "forbid",
            )
