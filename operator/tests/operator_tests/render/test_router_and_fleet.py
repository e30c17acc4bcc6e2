"""The router's objects, and the fleet document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from duplex_operator.render import FleetRevision, RenderContext, render_fleet, render_router, router_url
from duplex_router.cli import parse_arguments, settings_of
from operator_tests.api.cel_cases import CPU
from operator_tests.api.objects import serving

CONTEXT = RenderContext(router_image="router:1", connector_image="connector:1", operator_version="0.1.0")


def child(kind: str, **change: Any) -> dict[str, Any]:
    return next(item for item in render_router(serving(**change), CONTEXT) if item["kind"] == kind)


def document(**change: Any) -> dict[str, Any]:
    config_map = render_fleet(serving(**change), [FleetRevision("0a1b2c3d")], (3, 41), ["b", "a", "b"])
    assert config_map["metadata"]["name"] == "chat-fleet"
    parsed: dict[str, Any] = json.loads(config_map["data"]["fleet.json"])
    return parsed


def test_the_router_may_read_its_fleet_and_endpoints_and_nothing_else() -> None:
    rules = child("Role")["rules"]
    assert [(rule["resources"], rule.get("resourceNames"), rule["verbs"]) for rule in rules] == [
        (["configmaps"], ["chat-fleet"], ["get", "list", "watch"]),
        (["endpointslices"], None, ["get", "list", "watch"]),
    ]
    account = child("ServiceAccount")["metadata"]["name"]
    assert child("Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == account
    assert child("RoleBinding")["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "llm"}]
    assert child("RoleBinding")["roleRef"]["name"] == child("Role")["metadata"]["name"]


def test_the_router_pod_fits_the_restricted_level() -> None:
    pod = child("Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {"hostNetwork", "hostPID", "hostIPC", "volumes"}.isdisjoint(pod)


def test_the_router_pod_says_whom_it_serves() -> None:
    (container,) = child("Deployment")["spec"]["template"]["spec"]["containers"]
    arguments = container["args"]
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert (given["--namespace"], given["--serving"]) == ("llm", "chat")
    assert (given["--port"], given["--admin-port"], given["--pod-name"]) == ("8000", "9100", "$(POD_NAME)")
    assert container["image"] == "router:1"


def test_replicas_are_told_of_the_store_that_they_share() -> None:
    plain = child("Deployment", router={"replicas": 2, "sessionStore": {"url": "valkey://store:6379"}})
    (container,) = plain["spec"]["template"]["spec"]["containers"]
    assert container["args"][-2:] == ["--store", "valkey://store:6379"]
    assert plain["spec"]["replicas"] == 2
    secret = {"secretRef": {"name": "store-address", "key": "uri"}}
    pod = child("Deployment", router={"replicas": 2, "sessionStore": secret})["spec"]["template"]["spec"]
    (container,), (volume,) = pod["containers"], pod["volumes"]
    assert container["args"][-2:] == ["--store-file", "/etc/duplex/store/uri"]
    assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/etc/duplex/store", "readOnly": True}]
    assert volume["secret"]["secretName"] == "store-address"


def test_settings_of_the_router_are_rendered() -> None:
    settings = {
        "router": {
            "image": "own:2",
            "replicas": 3,
            "affinity": "Header",
            "resources": {"requests": {"cpu": 2}},
            "service": {"type": "LoadBalancer", "port": 80, "annotations": {"lb": "nlb"}},
            "podTemplate": {"spec": {"nodeSelector": {"pool": "web"}}},
        }
    }
    deployment, service = child("Deployment", **settings), child("Service", **settings)
    pod = deployment["spec"]["template"]["spec"]
    assert deployment["spec"]["replicas"] == 3
    assert pod["containers"][0]["image"] == "own:2"
    assert pod["containers"][0]["resources"] == {"requests": {"cpu": 2, "memory": "128Mi"}}
    assert pod["nodeSelector"] == {"pool": "web"}
    assert service["spec"]["type"] == "LoadBalancer"
    assert service["spec"]["ports"][0]["port"] == 80
    assert service["metadata"]["annotations"] == {"lb": "nlb"}
    assert router_url(serving(**settings), CONTEXT) == "http://chat-router.llm.svc.cluster.local:80/v1"


def test_the_fleet_document() -> None:
    assert document() == {
        "version": [3, 41],
        "serving": {"namespace": "llm", "name": "chat", "generation": 0},
        "model": {"name": "Qwen/Qwen3-32B", "blockSize": 16, "connector": "Guarded"},
        "policy": {
            "bidirectional": True,
            "ttlSeconds": 480,
            "maxHoldSeconds": 3600,
            "recomputeThresholdTokens": 64,
            "retentionPercent": 50,
            "tenancy": "Authorization",
            "streams": True,
            "marginSeconds": 5.0,
        },
        "canary": {"enabled": True, "intervalSeconds": 300},
        "revisions": [
            {
                "name": "0a1b2c3d",
                "weight": 100,
                "prefill": "chat-prefill-0a1b2c3d",
                "decode": "chat-decode-0a1b2c3d",
            }
        ],
        "draining": ["a", "b"],
    }


def test_the_fleet_document_follows_the_spec() -> None:
    reuse = {
        "enabled": False,
        "ttlSeconds": 60,
        "recomputeThresholdTokens": 256,
        "retentionBudget": {"percentOfKV": 20},
    }
    given = document(**CPU, kvTransfer={"bidirectional": reuse}, router={"tenancy": "None"})
    assert given["policy"]["bidirectional"] is False
    assert (given["policy"]["ttlSeconds"], given["policy"]["recomputeThresholdTokens"]) == (60, 256)
    assert (given["policy"]["retentionPercent"], given["policy"]["tenancy"]) == (20, "None")
    assert given["model"]["blockSize"] == 32


def test_the_fleet_document_is_bounded() -> None:
    many = render_fleet(serving(), [FleetRevision("0a1b2c3d")], (1, 1), (f"pod-{number}" for number in range(5000)))
    assert len(json.loads(many["data"]["fleet.json"])["draining"]) == 1000


def test_rendering_twice_gives_the_same() -> None:
    assert render_router(serving(), CONTEXT) == render_router(serving(), CONTEXT)


def test_keys_certificates_and_limits_reach_the_router() -> None:
    change = {
        "auth": {"apiKeysSecretRef": "keys"},
        "tls": {"secretRef": "certificate"},
        "limits": {"maxRequestBytes": 1048576, "maxConcurrentTurns": 9},
    }
    pod = child("Deployment", router=change)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    given = dict(zip(container["args"][::2], container["args"][1::2], strict=True))
    places = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    secrets = {volume["name"]: volume["secret"]["secretName"] for volume in pod["volumes"]}
    assert {secrets[name]: place for name, place in places.items()} == {
        "keys": given["--api-keys"],
        "certificate": given["--tls-cert"].removesuffix("/tls.crt"),
    }
    assert given["--tls-key"] == given["--tls-cert"].replace("tls.crt", "tls.key")
    assert (given["--max-body-bytes"], given["--max-turns"]) == ("1048576", "9")
    assert not any("subPath" in mount for mount in container["volumeMounts"]), "it would never be renewed"
    parsed = settings_of(parse_arguments(container["args"]))
    assert parsed.credentials.api_keys == Path(places["api-keys"])
    assert router_url(serving(router=change), CONTEXT).startswith("https://")
