"""The router of a serving: Deployment, Service, and an account that may read the fleet and its endpoints, no more."""

from __future__ import annotations

from typing import Any, Final

from duplex_connector.contract import Port
from duplex_operator.api import DisaggregatedServing
from duplex_operator.api.pod_template import ROUTER_CONTAINER
from duplex_operator.render.merge import merge
from duplex_operator.render.names import (
    API_PORT,
    CONTAINER_API_PORT,
    RenderContext,
    fleet_name,
    metadata,
    router_labels,
    router_name,
    router_selector,
)

_GRACE_SECONDS: Final = 120
"""Longest time that a stopping router goes on relaying streams."""

_PRE_STOP_SECONDS: Final = 5

_SECRETS: Final = "/etc/duplex"
_KEYS: Final = "api-keys"
_CERTIFICATE: Final = "tls"
_STORE: Final = "store"


def render_router(serving: DisaggregatedServing, context: RenderContext) -> list[dict[str, Any]]:
    """Return the router's objects, what others need first."""
    return [*_account(serving, context), _service(serving, context), _deployment(serving, context)]


def _account(serving: DisaggregatedServing, context: RenderContext) -> list[dict[str, Any]]:
    name = router_name(serving.name)
    own = metadata(serving, name, router_labels(serving.name), context.operator_version)
    read = ["get", "list", "watch"]
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": own,
            "automountServiceAccountToken": False,
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": own,
            "rules": [
                {
                    # A list or watch counts as one of this name when its field selector is metadata.name=<name>.
                    "apiGroups": [""],
                    "resources": ["configmaps"],
                    "resourceNames": [fleet_name(serving.name)],
                    "verbs": read,
                },
                # EndpointSlices have generated names, so they cannot be told apart here.
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": read},
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": own,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": serving.namespace}],
        },
    ]


def _service(serving: DisaggregatedServing, context: RenderContext) -> dict[str, Any]:
    service = serving.spec.router.service
    own = metadata(serving, router_name(serving.name), router_labels(serving.name), context.operator_version)
    if service.annotations:
        own["annotations"] = dict(service.annotations)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": own,
        "spec": {
            "type": service.type.value,
            "selector": router_selector(serving.name),
            "ports": [API_PORT | {"port": service.port, "targetPort": "api"}],
        },
    }


def _deployment(serving: DisaggregatedServing, context: RenderContext) -> dict[str, Any]:
    router = serving.spec.router
    labels = router_labels(serving.name)
    template = {
        "metadata": {"labels": labels},
        "spec": {
            "serviceAccountName": router_name(serving.name),
            "automountServiceAccountToken": True,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": _GRACE_SECONDS,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "runAsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [_container(serving, context)],
            **({"volumes": volumes} if (volumes := _volumes(serving)) else {}),
        },
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(serving, router_name(serving.name), labels, context.operator_version),
        "spec": {
            "replicas": 0 if serving.spec.suspend else router.replicas,
            "revisionHistoryLimit": 2,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "selector": {"matchLabels": router_selector(serving.name)},
            "template": merge(template, router.pod_template or {}),
        },
    }


def _container(serving: DisaggregatedServing, context: RenderContext) -> dict[str, Any]:
    router = serving.spec.router
    given = router.resources.model_dump(mode="json", by_alias=True, exclude_none=True) if router.resources else {}
    return {
        "name": ROUTER_CONTAINER,
        "image": router.image or context.router_image,
        "command": ["duplex-router"],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "args": [
            "--namespace",
            serving.namespace,
            "--serving",
            serving.name,
            "--host",
            "0.0.0.0",  # noqa: S104 - the pod's own network namespace
            "--port",
            str(Port.API),
            "--admin-port",
            str(Port.ADMIN),
            "--pod-name",
            "$(POD_NAME)",
            *_options(serving),
        ],
        "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "ports": [CONTAINER_API_PORT, {"name": "admin", "containerPort": Port.ADMIN, "protocol": "TCP"}],
        "resources": merge({"requests": {"cpu": "100m", "memory": "128Mi"}}, given),
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "admin"}, "periodSeconds": 2, "timeoutSeconds": 5},
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": "admin"},
            "periodSeconds": 10,
            "timeoutSeconds": 10,
            "failureThreshold": 6,
        },
        "lifecycle": {"preStop": {"sleep": {"seconds": _PRE_STOP_SECONDS}}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        **({"volumeMounts": mounts} if (mounts := _mounts(serving)) else {}),
    }


def _secrets(serving: DisaggregatedServing) -> dict[str, str]:
    """Return the Secrets that the router reads, by the names of their volumes."""
    router = serving.spec.router
    named = {}
    if router.auth is not None:
        named[_KEYS] = router.auth.api_keys_secret_ref
    if router.tls is not None:
        named[_CERTIFICATE] = router.tls.secret_ref
    if router.session_store is not None and router.session_store.secret_ref is not None:
        named[_STORE] = router.session_store.secret_ref.name
    return named


def _volumes(serving: DisaggregatedServing) -> list[dict[str, Any]]:
    return [{"name": name, "secret": {"secretName": secret}} for name, secret in _secrets(serving).items()]


def _mounts(serving: DisaggregatedServing) -> list[dict[str, Any]]:
    # Whole folders: a file that is mounted by itself (subPath) is not renewed when its Secret changes.
    return [{"name": name, "mountPath": f"{_SECRETS}/{name}", "readOnly": True} for name in _secrets(serving)]


def _options(serving: DisaggregatedServing) -> list[str]:
    router, options = serving.spec.router, []
    if router.auth is not None:
        options += ["--api-keys", f"{_SECRETS}/{_KEYS}"]
    if router.tls is not None:
        folder = f"{_SECRETS}/{_CERTIFICATE}"
        options += ["--tls-cert", f"{folder}/tls.crt", "--tls-key", f"{folder}/tls.key"]
    store = router.session_store
    if store is not None and store.secret_ref is not None:
        options += ["--store-file", f"{_SECRETS}/{_STORE}/{store.secret_ref.key}"]
    elif store is not None and store.url is not None:
        options += ["--store", store.url]
    limits = router.limits
    if limits is not None and limits.max_request_bytes is not None:
        options += ["--max-body-bytes", str(limits.max_request_bytes)]
    if limits is not None and limits.max_concurrent_turns is not None:
        options += ["--max-turns", str(limits.max_concurrent_turns)]
    return options
