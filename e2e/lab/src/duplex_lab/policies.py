"""From NetworkPolicy objects to a node's iptables rules: pure.

Ingress of pods only, which is what Duplex writes: a policy that limits egress is refused with `LabError`. A connection
that stands is left alone, and a node may always reach its pods, as with every network plug-in: probes come from there.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from duplex_lab.errors import LabError

CHAIN: Final = "DUPLEX-POLICY"

KubeObject = dict[str, Any]


@dataclass(frozen=True)
class Objects:
    """What policies are read with."""

    policies: Sequence[KubeObject]
    pods: Sequence[KubeObject]
    namespaces: Sequence[KubeObject]


def ruleset(objects: Objects, pod_range: str, node_addresses: Iterable[str]) -> str:
    """Return the input of `iptables-restore --noflush` for the node whose pods have addresses of `pod_range`.

    The chain is written whole; FORWARD has to jump to it.
    """
    here = ipaddress.ip_network(pod_range)
    labels = {each["metadata"]["name"]: _labels(each) for each in objects.namespaces}
    pods = [pod for pod in objects.pods if _address(pod)]
    lines = [f"-A {CHAIN} -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN"]
    lines += [f"-A {CHAIN} -s {address} -j RETURN" for address in node_addresses]
    for pod in sorted(pods, key=_address):
        if ipaddress.ip_address(_address(pod)) not in here:
            continue
        chosen = [policy for policy in objects.policies if _isolates(policy, pod)]
        for policy in chosen:
            lines += _admitted(policy, pod, pods, labels)
        if chosen:
            lines.append(f"-A {CHAIN} -d {_address(pod)} -j DROP")
    return "\n".join(["*filter", f":{CHAIN} - [0:0]", *lines, "COMMIT", ""])


def _isolates(policy: KubeObject, pod: KubeObject) -> bool:
    spec = policy["spec"]
    if "Egress" in (spec.get("policyTypes") or ()) or spec.get("egress"):
        raise LabError(f"NetworkPolicy {policy['metadata']['name']}: the lab enforces no egress")
    same = policy["metadata"]["namespace"] == pod["metadata"]["namespace"]
    return same and _selects(spec.get("podSelector") or {}, _labels(pod))


def _admitted(
    policy: KubeObject, pod: KubeObject, pods: Sequence[KubeObject], namespaces: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    own = policy["metadata"]["namespace"]
    for rule in policy["spec"].get("ingress") or ():
        peers = rule.get("from")
        sources = [""] if not peers else [source for peer in peers for source in _sources(peer, own, pods, namespaces)]
        for source in sources:
            for port in _ports(rule, pod):
                yield f"-A {CHAIN} -d {_address(pod)}{source}{port} -j RETURN"


def _sources(
    peer: Mapping[str, Any], own: str, pods: Sequence[KubeObject], namespaces: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    if block := peer.get("ipBlock"):
        if block.get("except"):
            raise LabError("the lab knows no exceptions from an ipBlock")
        yield f" -s {ipaddress.ip_network(block['cidr'])}"
        return
    selector = peer.get("namespaceSelector")
    for pod in pods:
        home = pod["metadata"]["namespace"]
        there = home == own if selector is None else _selects(selector, namespaces.get(home, {}))
        if there and _selects(peer.get("podSelector") or {}, _labels(pod)):
            yield f" -s {_address(pod)}"


def _ports(rule: Mapping[str, Any], pod: KubeObject) -> Iterator[str]:
    ports = rule.get("ports")
    if not ports:
        yield ""
        return
    for each in ports:
        protocol = str(each.get("protocol", "TCP")).lower()
        wanted = each.get("port")
        if isinstance(wanted, str):
            wanted = _named_port(pod, wanted)
            if wanted is None:
                continue  # this pod has no port of the name, so the rule opens none of it
        span = "" if wanted is None else f" --dport {wanted}" + (f":{each['endPort']}" if "endPort" in each else "")
        yield f" -p {protocol}" + (f" -m {protocol}{span}" if span else "")


def _named_port(pod: KubeObject, name: str) -> int | None:
    for container in pod["spec"]["containers"]:
        for port in container.get("ports") or ():
            if port.get("name") == name:
                return int(port["containerPort"])
    return None


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    wanted = (selector.get("matchLabels") or {}).items()
    expressions = selector.get("matchExpressions") or ()
    return wanted <= labels.items() and all(_holds(each, labels) for each in expressions)


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case _:
            return key not in labels


def _labels(obj: KubeObject) -> Mapping[str, str]:
    return obj["metadata"].get("labels") or {}


def _address(pod: KubeObject) -> str:
    """Return a pod's own address; empty where it has none, shares its node's, or has ended."""
    status = pod.get("status") or {}
    over = status.get("phase") in ("Succeeded", "Failed")
    return "" if over or pod["spec"].get("hostNetwork") else str(status.get("podIP") or "")
