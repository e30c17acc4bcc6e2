"""Enforces NetworkPolicies in a lab: one process that follows the API server and writes each node's rules.

The lab's bridges enforce nothing by themselves. A process of its own, which ends with the lab:

    python -m duplex_lab.policy_agent SETTINGS
"""

from __future__ import annotations

import http.client
import json
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from duplex_lab.errors import LabError
from duplex_lab.policies import CHAIN, Objects, ruleset
from duplex_lab.processes import ProcessIdentity

_PERIOD_SECONDS: Final = 0.5
_POLICIES: Final = "/apis/networking.k8s.io/v1/networkpolicies"
_PODS: Final = "/api/v1/pods"
_NAMESPACES: Final = "/api/v1/namespaces"
_JUMP: Final = f"iptables -w -C FORWARD -j {CHAIN} 2>/dev/null || iptables -w -I FORWARD -j {CHAIN}"


@dataclass(frozen=True)
class PolicyNode:
    """A node whose rules are written: the process that holds its network, and its addresses."""

    holder: ProcessIdentity
    address: str
    pod_range: str

    def record(self) -> dict[str, Any]:
        """Return a JSON object from which `from_record` makes an equal one."""
        return {"holder": self.holder.record(), "address": self.address, "podRange": self.pod_range}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> PolicyNode:
        """Read back what `record` wrote."""
        return cls(ProcessIdentity.from_record(record["holder"]), record["address"], record["podRange"])


class PolicyAgent:
    """Follows the policies, and writes a node's rules when they change."""

    def __init__(self, server: str, pki: Path, nodes: list[PolicyNode]) -> None:
        self._server = urlsplit(server)
        self._context = ssl.create_default_context(cafile=pki / "ca.crt")
        self._context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        self._nodes = nodes
        self._written: dict[str, str] = {}

    def once(self) -> None:
        """Bring every node's rules up to date. Raises OSError while the API server does not answer."""
        policies = self._items(_POLICIES)
        if not policies and not self._written:
            return
        objects = Objects(policies, self._items(_PODS), self._items(_NAMESPACES))
        addresses = [node.address for node in self._nodes]
        for node in self._nodes:
            if node.holder.alive():
                self._write(node, ruleset(objects, node.pod_range, addresses))

    def _write(self, node: PolicyNode, rules: str) -> None:
        if self._written.get(node.address) == rules:
            return
        enter = ["nsenter", "-t", str(node.holder.pid), "-n"]
        subprocess.run([*enter, "iptables-restore", "-w", "--noflush"], input=rules, text=True, check=True)
        subprocess.run([*enter, "sh", "-c", _JUMP], check=True)
        self._written[node.address] = rules

    def _items(self, path: str) -> list[dict[str, Any]]:
        connection = http.client.HTTPSConnection(
            str(self._server.hostname), self._server.port, context=self._context, timeout=10
        )
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
        except http.client.HTTPException as error:
            raise OSError(f"GET {path}: {error}") from error
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise OSError(f"GET {path}: {answer.status}")
        items: list[dict[str, Any]] = json.loads(body)["items"]
        return items

    def run(self) -> None:
        """Follow for ever; a failure is told once."""
        told = ""
        while True:
            try:
                self.once()
            except (OSError, LabError, subprocess.CalledProcessError) as error:
                if str(error) != told:
                    told = str(error)
                    sys.stderr.write(f"policies: {error}\n")
            time.sleep(_PERIOD_SECONDS)


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    PolicyAgent(given["server"], Path(given["pki"]), [PolicyNode.from_record(node) for node in given["nodes"]]).run()
