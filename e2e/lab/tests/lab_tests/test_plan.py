"""Names and addresses: no two nodes share any, and a lab's name cannot reach outside its folder."""

import ipaddress

import pytest

from duplex_lab.components import POD_RANGE, SERVICE_RANGE
from duplex_lab.errors import LabError
from duplex_lab.plan import MAXIMUM_NODES, NodePlan, cgroup_belongs_to, checked_name


@pytest.mark.parametrize("name", ["a", "demo", "e2e-2", "a" * 24])
def test_plain_names_are_taken(name: str) -> None:
    assert checked_name(name) == name


@pytest.mark.parametrize("name", ["", "..", "a/b", "A", "-a", "a-", "a" * 25, "a b", "a\n"])
def test_names_that_could_do_harm_are_refused(name: str) -> None:
    with pytest.raises(LabError, match="lab name"):
        checked_name(name)


def test_nodes_share_neither_name_nor_address_nor_pods() -> None:
    plans = [NodePlan("a", index) for index in range(1, MAXIMUM_NODES + 1)]
    for attribute in ("name", "address", "pod_range", "cgroup"):
        assert len({getattr(plan, attribute) for plan in plans}) == MAXIMUM_NODES
    pods, services = ipaddress.ip_network(POD_RANGE), ipaddress.ip_network(SERVICE_RANGE)
    for plan in plans:
        assert ipaddress.IPv4Network(plan.pod_range).subnet_of(ipaddress.IPv4Network(POD_RANGE))
        assert ipaddress.ip_address(plan.address) in ipaddress.ip_network("10.200.0.0/24")
    assert not pods.overlaps(services)


@pytest.mark.parametrize("index", [0, -1, MAXIMUM_NODES + 1])
def test_a_lab_has_a_bounded_number_of_nodes(index: int) -> None:
    with pytest.raises(LabError, match="1 to 100 nodes"):
        NodePlan("a", index)


def test_a_cgroup_belongs_to_the_lab_of_its_very_name() -> None:
    assert cgroup_belongs_to("a", NodePlan("a", 12).cgroup)
    assert not cgroup_belongs_to("a", NodePlan("a-node1", 1).cgroup)
    assert not cgroup_belongs_to("a", NodePlan("ab", 1).cgroup)
