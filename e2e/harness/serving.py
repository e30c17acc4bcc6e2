"""Apply, edit and watch one DisaggregatedServing through kubectl, as a user would."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from duplex_lab.cluster import Cluster

from .kstatus import broken_rules

T = TypeVar("T")
POLL_SECONDS = 0.5


class NotReadyError(Exception):
    """A serving did not get where it should within its time; the text holds its last conditions."""


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the one object of a YAML file."""
    manifest: dict[str, Any] = yaml.safe_load(path.read_text())
    return manifest


def merged(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `patch` merged in as RFC 7386 has it: null removes, lists are replaced."""
    out = dict(base)
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(out.get(key), Mapping):
            out[key] = merged(out[key], value)
        else:
            out[key] = value
    return out


def served_name(resource: Mapping[str, Any]) -> str:
    """Return the model's name in the API, which is its id where the resource gives no other."""
    model = resource["spec"]["model"]
    return str(model.get("servedName", model["id"]))


@dataclass(frozen=True)
class Serving:
    """A handle on one DisaggregatedServing in the cluster."""

    cluster: Cluster
    namespace: str
    name: str

    @property
    def url(self) -> str:
        """The router's API as other pods see it."""
        return f"http://{self.name}-router.{self.namespace}.svc.cluster.local:8000"

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl in the serving's namespace and return what it printed."""
        return str(self.cluster.kubectl("-n", self.namespace, *arguments, input=stdin).stdout)

    def apply(self, manifest: Mapping[str, Any]) -> None:
        """Apply the manifest under this name and in this namespace."""
        named = merged(manifest, {"metadata": {"name": self.name, "namespace": self.namespace}})
        self.kubectl("apply", "-f", "-", stdin=json.dumps(named))

    def patch(self, spec: Mapping[str, Any]) -> None:
        """Merge `spec` into the resource's spec."""
        self.kubectl("patch", "dsv", self.name, "--type=merge", "-p", json.dumps({"spec": spec}))

    def get(self) -> dict[str, Any]:
        """Return the resource as the API server has it. Raises AssertionError where its status breaks a rule."""
        found: dict[str, Any] = json.loads(self.kubectl("get", "dsv", self.name, "-o", "json"))
        if "status" in found:
            broken = broken_rules(found, found["status"])
            if broken:
                raise AssertionError(f"{self.name}: {broken}: {found['status']}")
        return found

    def condition(self, kind: str) -> dict[str, Any]:
        """Return one condition, or an empty mapping."""
        conditions = self.get().get("status", {}).get("conditions") or []
        return next((entry for entry in conditions if entry["type"] == kind), {})

    def list(self, kind: str, *, role: str | None = None) -> list[dict[str, Any]]:
        """Return the serving's children of a kind, of one role where given."""
        selector = f"duplex.dev/serving={self.name}" + (f",duplex.dev/role={role}" if role else "")
        found = json.loads(self.kubectl("get", kind, "-l", selector, "-o", "json"))
        return list(found["items"])

    def _staying(self, role: str) -> Sequence[dict[str, Any]]:
        return [pod for pod in self.list("pods", role=role) if "deletionTimestamp" not in pod["metadata"]]

    def staying(self, role: str) -> set[str]:
        """Return the names of a role's pods, those on their way out left aside."""
        return {pod["metadata"]["name"] for pod in self._staying(role)}

    def addresses(self, role: str) -> dict[str, str]:
        """Return the addresses of a role's pods by name, of those that stay and have one."""
        with_one = [pod for pod in self._staying(role) if pod["status"].get("podIP")]
        return {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in with_one}

    def wait_ready(self, *, seconds: float, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
        """Wait until Ready is True for the present generation; `say` hears each change of reason."""

        def ready() -> dict[str, Any] | None:
            resource = self.get()
            status = resource.get("status", {})
            conditions: list[dict[str, Any]] = status.get("conditions") or []
            condition = next((entry for entry in conditions if entry["type"] == "Ready"), {})
            said = f"{condition.get('reason', 'Pending')}: {condition.get('message', '')}".strip(": ")
            if said != seen[0]:
                seen[0] = said
                say(said)
            generation = resource["metadata"]["generation"]
            rolled = status.get("revision") == status.get("updateRevision", status.get("revision"))
            current = status.get("observedGeneration") == generation and rolled
            return resource if current and condition.get("status") == "True" else None

        seen = [""]
        return self.wait(ready, seconds=seconds, what="Ready")

    def wait(self, probe: Callable[[], T | None], *, seconds: float, what: str) -> T:
        """Poll until the probe returns something; raise NotReadyError with the serving's status otherwise."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = probe()
            if found is not None:
                return found
            time.sleep(POLL_SECONDS)
        shown = self.cluster.kubectl("-n", self.namespace, "get", "dsv", self.name, "-o", "yaml", check=False)
        status = str(shown.stdout or shown.stderr)
        raise NotReadyError(f"{self.namespace}/{self.name}: no {what} within {seconds:.0f} s; its status:\n{status}")
