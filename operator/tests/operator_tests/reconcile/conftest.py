"""Fixtures of the reconcile's tests."""

import pytest

from duplex_kube.client import Client
from duplex_lab.control_plane import ControlPlane

from .harness import World


@pytest.fixture
def world(kube_api: Client, control_plane: ControlPlane, namespace: str) -> World:
    """Return a namespace on the real API server, with operators on call."""
    return World(kube_api, control_plane.kubeconfig, namespace)
