"""Why a pod is not ready, from what a kubelet writes into its status."""

from typing import Any

import pytest

from duplex_operator.api import Reason
from duplex_operator.plan import Pod, pod_of
from duplex_operator.plan.pods import gravest


def pod(name: str = "p", **status: Any) -> Pod:
    labels = {"duplex.dev/role": "decode", "duplex.dev/revision": "abc"}
    return pod_of({"metadata": {"name": name, "labels": labels}, "status": status})


def container(state: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    return [
        {"name": "engine", "image": "i:1", "ready": False, "started": False, "restartCount": 0, "state": state, **more}
    ]


RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
CRASHED = {"terminated": {"exitCode": 1, "reason": "Error", "message": "Traceback\nValueError: no such model\n"}}

CASES = [
    (
        {
            "phase": "Failed",
            "reason": "UnexpectedAdmissionError",
            "message": "Allocate failed due to no healthy devices",
            "containerStatuses": container(CRASHED),
        },
        Reason.PODS_NOT_READY,
        "its node ended it: UnexpectedAdmissionError: Allocate failed due to no healthy devices",
    ),
    (
        {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}]},
        Reason.INSUFFICIENT_CAPACITY,
        "0/3 nodes are available",
    ),
    (
        {"containerStatuses": container({"waiting": {"reason": "ImagePullBackOff", "message": "not found"}})},
        Reason.IMAGE_PULL,
        "image i:1: not found; check the name",
    ),
    (
        {
            "containerStatuses": container(
                {"waiting": {"reason": "CrashLoopBackOff"}}, restartCount=4, lastState=CRASHED
            )
        },
        Reason.CRASH_LOOP,
        "exit code 1, restarted 4 times); its last words: Traceback\nValueError: no such model",
    ),
    # Between two crashes the engine runs for a while: it is still in a crash loop.
    ({"containerStatuses": container(RUNNING, restartCount=1, lastState=CRASHED)}, Reason.CRASH_LOOP, "no such model"),
    ({"containerStatuses": container(CRASHED)}, Reason.CRASH_LOOP, "no such model"),
    (
        {"containerStatuses": container({"terminated": {"exitCode": 137, "reason": "OOMKilled"}})},
        Reason.CRASH_LOOP,
        "exit code 137, OOMKilled",
    ),
    (
        {
            "initContainerStatuses": [
                {"name": "preflight", "ready": False, "state": {"terminated": {"exitCode": 2, "message": "no EFA"}}}
            ]
        },
        Reason.PREFLIGHT_FAILED,
        "no EFA",
    ),
    (
        {
            "containerStatuses": container(
                {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "x"'}}
            )
        },
        Reason.PODS_NOT_READY,
        'secret "x"',
    ),
    ({"containerStatuses": container(RUNNING)}, Reason.MODEL_LOADING, "loads its model"),
    (
        {
            "containerStatuses": container(RUNNING, started=True),
            "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": "2025-12-31T23:59:58Z"}],
        },
        Reason.WAITING_FOR_PODS,
        "readiness probe yet",
    ),
    (
        {
            "containerStatuses": container(RUNNING, started=True),
            "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T08:00:00Z"}],
        },
        Reason.PODS_NOT_READY,
        "no longer answers",
    ),
    ({"phase": "Pending"}, Reason.WAITING_FOR_PODS, "Pending"),
    (
        {
            "initContainerStatuses": [{"name": "connector", "ready": False, "state": RUNNING}],
            "containerStatuses": container({"waiting": {"reason": "PodInitializing"}}),
        },
        Reason.WAITING_FOR_PODS,
        "init container connector runs",
    ),
]


@pytest.mark.parametrize(("status", "reason", "words"), CASES)
def test_reasons(status: dict[str, Any], reason: Reason, words: str) -> None:
    trouble = pod(**status).trouble
    assert trouble is not None
    assert trouble.reason is reason
    assert words in trouble.message


def test_a_finished_init_container_is_no_trouble() -> None:
    done = {"name": "connector", "ready": True, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
    trouble = pod(initContainerStatuses=[done], containerStatuses=container(RUNNING)).trouble
    assert trouble is not None
    assert trouble.reason is Reason.MODEL_LOADING


def test_a_pods_lives_and_its_preflights_verdict_are_read() -> None:
    done = {
        "name": "preflight",
        "state": {"terminated": {"exitCode": 0, "message": "preflight: the engine can start\n"}},
    }
    running = {"state": RUNNING, "ready": True, "name": "engine", "restartCount": 2}
    found = pod(initContainerStatuses=[done], containerStatuses=[running])
    assert (found.started, found.restarts) == ("2026-01-01T00:00:00Z", 2)
    assert found.preflight == "preflight: the engine can start"
    failed = {"name": "preflight", "state": {"terminated": {"exitCode": 1, "message": "preflight: no EFA"}}}
    assert pod(initContainerStatuses=[failed]).preflight == ""
    assert (pod().started, pod().restarts, pod().preflight) == ("", 0, "")


def test_a_ready_or_terminating_pod_has_no_trouble() -> None:
    assert pod(conditions=[{"type": "Ready", "status": "True"}]).trouble is None
    ending = pod_of({"metadata": {"name": "p", "deletionTimestamp": "now"}, "status": {"phase": "Running"}})
    assert ending.terminating
    assert ending.trouble is None


def test_last_words_are_the_last_and_bounded() -> None:
    long = {"terminated": {"exitCode": 1, "message": "x" * 5000 + "the end"}}
    trouble = pod(containerStatuses=container(long)).trouble
    assert trouble is not None
    assert trouble.message.endswith("the end")
    assert len(trouble.message) < 800


def test_the_gravest_is_told_once_with_how_many_have_it_in_any_order() -> None:
    pods = [
        pod("a", containerStatuses=container(RUNNING)),
        pod("c", containerStatuses=container(CRASHED)),
        pod("b", containerStatuses=container(CRASHED)),
    ]
    for order in (pods, pods[::-1]):
        trouble = gravest(order)
        assert trouble is not None
        assert trouble.reason is Reason.CRASH_LOOP
        assert trouble.message.startswith("pod b (and 1 more like it): ")
    assert gravest([]) is None


def test_a_pod_that_its_node_ended_is_over() -> None:
    assert [pod(phase=phase).over for phase in ("Pending", "Running", "Failed", "Succeeded")] == [
        False,
        False,
        True,
        True,
    ]


def test_when_a_pod_is_to_be_gone_is_what_the_server_says() -> None:
    gone = pod_of({"metadata": {"name": "p", "deletionTimestamp": "2026-01-01T00:02:00Z"}})
    assert (gone.terminating, gone.due, gone.stuck) == (True, "2026-01-01T00:02:00Z", False)
    assert pod().due == ""
