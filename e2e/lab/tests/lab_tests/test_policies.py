"""What policies admit, read from the rules that a node gets: a small interpreter stands in for iptables."""

import copy
import re
from typing import Any

import pytest

from duplex_lab.errors import LabError
from duplex_lab.policies import CHAIN, Objects, ruleset

NODE = "10.200.0.2"
RANGE = "10.244.1.0/24"


def pod(name: str, address: str, namespace: str = "n", **labels: str) -> dict[str, Any]:
    ports = [{"name": "api", "containerPort": 8000}]
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"containers": [{"ports": ports}]},
        "status": {"podIP": address, "phase": "Running"},
    }


PODS = [
    pod("engine", "10.244.1.1", role="decode"),
    pod("peer", "10.244.1.2", role="prefill"),
    pod("router", "10.244.2.3", role="router"),
    pod("stranger", "10.244.1.4"),
    pod("operator", "10.244.1.5", "system", app="operator"),
    pod("double", "10.244.1.6", "elsewhere", app="operator"),
]
NAMESPACES = [
    {"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}}}
    for name in ("n", "system", "elsewhere")
]

ENGINES = {"matchExpressions": [{"key": "role", "operator": "In", "values": ["prefill", "decode"]}]}
POLICY: dict[str, Any] = {
    "metadata": {"name": "engines", "namespace": "n"},
    "spec": {
        "podSelector": ENGINES,
        "policyTypes": ["Ingress"],
        "ingress": [
            {
                "from": [{"podSelector": {"matchLabels": {"role": "router"}}}],
                "ports": [{"protocol": "TCP", "port": 8000}],
            },
            {"from": [{"podSelector": ENGINES}]},
            {
                "from": [
                    {
                        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "system"}},
                        "podSelector": {"matchLabels": {"app": "operator"}},
                    }
                ],
                "ports": [{"port": "api"}],
            },
        ],
    },
}


def rules(*policies: dict[str, Any], pods: list[dict[str, Any]] = PODS) -> str:
    return ruleset(Objects(policies, pods, NAMESPACES), RANGE, [NODE])


def passes(text: str, source: str, target: str, port: int) -> bool:
    """Walk the chain as iptables would for a new TCP connection."""
    for line in text.splitlines():
        if not line.startswith(f"-A {CHAIN}") or "--ctstate" in line:
            continue
        options = dict(re.findall(r"(-[sdp]|--dport) (\S+)", line))
        wanted = {"-s": source, "-d": target, "-p": "tcp", "--dport": str(port)}
        if all(wanted[key] == value for key, value in options.items()):
            return line.endswith("-j RETURN")
    return True


@pytest.mark.parametrize(
    ("source", "port", "admitted"),
    [
        ("10.244.2.3", 8000, True),
        ("10.244.2.3", 5600, False),
        ("10.244.1.2", 5600, True),
        ("10.244.1.2", 40_123, True),
        ("10.244.1.4", 8000, False),
        ("10.244.1.5", 8000, True),
        ("10.244.1.6", 8000, False),
        (NODE, 8000, True),
    ],
)
def test_who_may_reach_an_engine(source: str, port: int, admitted: bool) -> None:  # noqa: FBT001 - a parameter
    assert passes(rules(POLICY), source, "10.244.1.1", port) is admitted


def test_a_pod_that_no_policy_selects_is_open() -> None:
    assert passes(rules(POLICY), "10.244.1.1", "10.244.1.4", 80)
    elsewhere = copy.deepcopy(POLICY)
    elsewhere["metadata"]["namespace"] = "elsewhere"
    assert passes(rules(elsewhere), "10.244.1.4", "10.244.1.1", 80)


def test_policies_add_up() -> None:
    for_all = copy.deepcopy(POLICY)
    for_all["spec"]["ingress"] = [{"ports": [{"port": 80}]}]
    both = rules(POLICY, for_all)
    assert passes(both, "10.244.1.4", "10.244.1.1", 80)
    assert passes(both, "10.244.1.2", "10.244.1.1", 5600)
    assert not passes(both, "10.244.1.4", "10.244.1.1", 81)


def test_no_rule_means_nobody() -> None:
    closed = copy.deepcopy(POLICY)
    closed["spec"]["ingress"] = []
    assert not passes(rules(closed), "10.244.1.2", "10.244.1.1", 8000)


def test_only_the_nodes_own_pods_are_in_its_rules_and_pods_that_ended_in_none() -> None:
    far = pod("far", "10.244.2.9", role="decode")
    over = pod("over", "10.244.1.9", role="decode")
    over["status"]["phase"] = "Succeeded"
    text = rules(POLICY, pods=[*PODS, far, over])
    assert "-d 10.244.2.9" not in text
    assert "10.244.1.9" not in text


def test_what_is_not_enforced_is_refused() -> None:
    egress = copy.deepcopy(POLICY)
    egress["spec"]["policyTypes"] = ["Egress"]
    with pytest.raises(LabError, match="egress"):
        rules(egress)
