"""Real vLLM as pods of a lab of its own: started, reached, killed without warning and removed, their logs kept."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from duplex_connector.contract import CONNECTOR_MOUNT, Env, Port
from duplex_lab import faults
from duplex_lab.engine import MODELS_IN_POD, Engine, ensure
from duplex_lab.errors import LabError
from duplex_lab.images import ENGINE_CPU
from duplex_lab.local_cluster import LocalCluster
from duplex_lab.progress import Progress

from .checks import is_alive

LAB: Final = "e2e-vllm"
_NAMESPACE: Final = "default"
_CONNECTOR: Final = "connector"
_CONTAINER: Final = "engine"
_OVERLAY_MOUNT: Final = "/overlay"
_ADDRESS_SECONDS: Final = 300
_START_SECONDS: Final = 1500.0
"""For an engine to serve: fifty times what idle cores need."""
_POLL_SECONDS: Final = 0.5
_POLLS_PER_LOOK: Final = 10
_MEMORY: Final = "3Gi"

ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    # Without it a read from a peer that is cut off waits for minutes.
    "UCX_TCP_USER_TIMEOUT": "5s",
}
"""What small offline engines on CPU need."""


class StartError(Exception):
    """An engine did not come up; the text holds the end of its log."""


@dataclass(frozen=True)
class PodPlan:
    """What a pod runs: vLLM with these flags; `guarded`: with the connector that an init container brings."""

    flags: tuple[str, ...]
    guarded: bool


@dataclass
class EnginePod:
    """A pod and the port of this machine's loopback that leads to it, for as long as `forward` is open."""

    name: str
    log: Path
    plan: PodPlan
    url: str = ""
    forward: ExitStack = field(default_factory=ExitStack)


def manifest(
    name: str, plan: PodPlan, *, images: Mapping[str, str], overlay: Path | None, pod: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the pod; `overlay`: a folder of the node that stands first on PYTHONPATH; `pod`: what its spec needs too.

    It is never restarted: an engine that a check kills or ends stays dead.
    """
    own_address = {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    volumes: dict[str, tuple[str, dict[str, Any]]] = {
        "shared-memory": ("/dev/shm", {"emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}}),  # noqa: S108 - a mount
        "models": (MODELS_IN_POD, {"hostPath": {"path": MODELS_IN_POD}}),
    }
    if overlay is not None:
        volumes["overlay"] = (_OVERLAY_MOUNT, {"hostPath": {"path": str(overlay)}})
    if plan.guarded:
        volumes[_CONNECTOR] = (CONNECTOR_MOUNT, {"emptyDir": {}})
    paths = [path for path, on in ((_OVERLAY_MOUNT, overlay is not None), (CONNECTOR_MOUNT, plan.guarded)) if on]
    constants = {**ENVIRONMENT, Env.SIDE_CHANNEL_PORT: str(Port.SIDE_CHANNEL), Env.PYTHON_PATH: ":".join(paths)}
    engine = {
        "name": _CONTAINER,
        "image": images[ENGINE_CPU],
        "args": [*plan.flags, "--host", "0.0.0.0", "--port", str(Port.API)],  # noqa: S104 - the pod's own network
        "env": [
            {"name": Env.HOST_IP, **own_address},
            {"name": Env.SIDE_CHANNEL_HOST, **own_address},
            *({"name": key, "value": value} for key, value in constants.items()),
        ],
        "volumeMounts": [{"name": key, "mountPath": path} for key, (path, _) in volumes.items()],
        "resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": _MEMORY}},
    }
    spec = {
        "containers": [engine],
        "volumes": [{"name": key, **source} for key, (_, source) in volumes.items()],
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        **pod,
    }
    if plan.guarded:
        mount = {"name": _CONNECTOR, "mountPath": CONNECTOR_MOUNT}
        spec["initContainers"] = [{"name": _CONNECTOR, "image": images[_CONNECTOR], "volumeMounts": [mount]}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


class EnginePods:
    """Engine pods on the lab `e2e-vllm`, which comes up on entry and goes on exit unless KEEP is set.

    `logs` gets a file per pod, at its end. Raises LabError where the lab cannot be, StartError where an engine cannot.
    """

    def __init__(self, logs: Path, *, overlay: bool) -> None:
        if os.environ.get("CLUSTER", "local") != "local":
            raise LabError("the checks on real vLLM kill engines from their node: they need CLUSTER=local")
        self._logs = logs
        self._overlay = overlay
        # Past pytest's capture: a run lasts long enough that people want to see it go on.
        self._progress = Progress(sys.__stderr__ or sys.stderr)
        self._cluster = LocalCluster(LAB, self._progress)
        self._running: dict[str, EnginePod] = {}
        self._started = 0
        self._images: dict[str, str] = {}
        self._engine: Engine | None = None

    def __enter__(self) -> Self:
        try:
            self._prepare()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for pod in list(self._running.values()):
                self._end(pod)
        finally:
            if os.environ.get("KEEP"):
                self._progress.say(f"left running (KEEP=1); end it with: duplex-lab down --name {LAB}")
            else:
                self._cluster.down()

    def _prepare(self) -> None:
        self._logs.mkdir(parents=True, exist_ok=True)
        self._engine = ensure(self._progress, overlay=self._overlay)
        self._cluster.up()
        # An earlier run's, which was killed or kept.
        self._kubectl("delete", "pods", "--all", "--now")
        wanted = (_CONNECTOR, ENGINE_CPU)
        self._cluster.load_images(wanted)
        self._images = {name: self._cluster.image_reference(name) for name in wanted}
        self._kubectl("wait", "serviceaccount/default", "--for=create", f"--timeout={_ADDRESS_SECONDS}s")

    def start(self, plans: Mapping[str, PodPlan], label: str) -> dict[str, EnginePod]:
        """Return a pod for each plan by the plan's name; they have addresses and need not serve yet.

        Pods are named after plan and order, logs after `label` and pod.
        """
        template = self._cluster.pod_additions(ENGINE_CPU)["spec"]["prefill"]["podTemplate"]["spec"]
        overlay = self._engine.overlay if self._engine is not None else None
        names = {key: f"{key}-{self._started + count}" for count, key in enumerate(plans, 1)}
        self._started += len(plans)
        self._progress.say(f"{label}: starting {', '.join(names.values()) or 'nothing new'}")
        items = [
            manifest(names[key], plan, images=self._images, overlay=overlay, pod=template)
            for key, plan in plans.items()
        ]
        self._kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        pods = {
            key: EnginePod(names[key], self._logs / f"{label}-{names[key]}.log", plan) for key, plan in plans.items()
        }
        # Known before they can be reached, so that they are removed and their logs kept whatever happens next.
        self._running |= {pod.name: pod for pod in pods.values()}
        self._await_addresses(names.values())
        for pod in pods.values():
            self._forward(pod)
        return pods

    def _await_addresses(self, names: Iterable[str]) -> None:
        condition = ("--for=jsonpath={.status.podIP}", f"--timeout={_ADDRESS_SECONDS}s")
        self._kubectl("wait", *(f"pod/{name}" for name in names), *condition)

    def _forward(self, pod: EnginePod) -> None:
        address = self._kubectl("get", "pod", pod.name, "-o", "jsonpath={.status.podIP}")
        port = pod.forward.enter_context(self._cluster.forward(f"{address}:{Port.API}"))
        pod.url = f"http://127.0.0.1:{port}"

    def await_health(self, pods: Iterable[EnginePod]) -> None:
        """Return when all serve; raises StartError with the end of the log of one that ended or takes too long."""
        for pod in pods:
            deadline, polls = time.monotonic() + _START_SECONDS, 0
            while not is_alive(pod.url):
                polls += 1
                if polls % _POLLS_PER_LOOK == 0 and self._phase(pod) not in {"Pending", "Running"}:
                    raise StartError(f"{pod.name} ended; its log ends:\n{self._tail(pod)}")
                if time.monotonic() > deadline:
                    raise StartError(f"{pod.name} does not serve after {_START_SECONDS:.0f} s:\n{self._tail(pod)}")
                time.sleep(_POLL_SECONDS)
        self._progress.say("all engines serve")

    def _phase(self, pod: EnginePod) -> str:
        return self._kubectl("get", "pod", pod.name, "-o", "jsonpath={.status.phase}")

    def _tail(self, pod: EnginePod) -> str:
        status = self._kubectl("get", "pod", pod.name, "-o", "jsonpath={.status.containerStatuses}", check=False)
        return f"{status}\n" + self._kubectl("logs", pod.name, "--tail=30", check=False)

    def kill(self, pod: EnginePod) -> None:
        """End every process of the pod's engine at once, from the node; its port on loopback refuses from then on."""
        faults.kill_pod(self._cluster, f"{_NAMESPACE}/{pod.name}")
        pod.forward.close()

    def stop(self, pods: Iterable[EnginePod]) -> None:
        """Keep the logs of the pods and remove them, without waiting for their end."""
        ended = list(pods)
        if not ended:
            return
        for pod in ended:
            self._end(pod)
        self._kubectl("delete", "--now", "--wait=false", *(f"pod/{pod.name}" for pod in ended))

    def _end(self, pod: EnginePod) -> None:
        pod.forward.close()
        del self._running[pod.name]
        pod.log.write_text(self._kubectl("logs", pod.name, check=False))

    def _kubectl(self, *arguments: str, text: str | None = None, check: bool = True) -> str:
        done = self._cluster.kubectl("-n", _NAMESPACE, *arguments, input=text, check=check)
        return str(done.stdout)
