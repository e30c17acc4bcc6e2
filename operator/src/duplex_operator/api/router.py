"""spec.router: the HTTP front of a serving."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from duplex_operator.api.base import ApiModel, ObjectName, PodTemplate, Resources, Rule, SecretKey, with_rules


class ServiceType(StrEnum):
    """Type of the router's Service."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class RouterService(ApiModel):
    """The Service that clients reach."""

    type: ServiceType = ServiceType.CLUSTER_IP
    """Type of the Service."""
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    """Port of the Service."""
    annotations: Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=32)] | None = None
    """Annotations, such as a load balancer's settings."""


class SessionStore(ApiModel):
    """A Valkey or Redis that router replicas share."""

    model_config = with_rules(
        Rule("has(self.url) != has(self.secretRef)", "sessionStore: give exactly one of url and secretRef"),
        Rule(
            "!has(self.url) || self.url.matches('^(redis|valkey)s?://[^@]+$')",
            "sessionStore.url: must be redis[s]://host:port or valkey[s]://host:port, without a password: an address "
            "with one belongs into a Secret, named by secretRef",
        ),
    )

    url: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Address: redis://host:port, rediss:// with TLS."""
    secret_ref: SecretKey | None = None
    """Secret with the address, where it holds a password."""


class Affinity(StrEnum):
    """How requests of one conversation find the same router replica."""

    NONE = "None"
    HEADER = "Header"


class Tenancy(StrEnum):
    """What separates the conversations of one tenant from another's."""

    AUTHORIZATION = "Authorization"
    HEADER = "Header"
    NONE = "None"


class Auth(ApiModel):
    """Keys that clients must show."""

    api_keys_secret_ref: ObjectName
    """Secret whose values are the keys."""


class Tls(ApiModel):
    """Encryption towards clients."""

    secret_ref: ObjectName
    """Secret of type kubernetes.io/tls."""


class RouterLimits(ApiModel):
    """Bounds on what clients may ask."""

    max_request_bytes: Annotated[int, Field(ge=1024, le=1_073_741_824)] | None = None
    """Longest request body."""
    max_concurrent_turns: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Most turns under way in one replica."""


class Router(ApiModel):
    """The router of a serving."""

    model_config = with_rules(
        Rule(
            "self.replicas <= 1 || has(self.sessionStore) || self.affinity == 'Header'",
            "replicas: each replica knows only the conversations that it served: set sessionStore, or affinity Header "
            "with a load balancer that sends one conversation to one replica, or keep 1",
        ),
    )

    replicas: Annotated[int, Field(ge=0, le=100)] = 1
    """Number of router pods."""
    image: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Image of the router; left out: the one that the operator was installed with."""
    resources: Resources | None = None
    """Resources of the router container."""
    pod_template: PodTemplate | None = None
    """A partial pod template, merged last: maps by key, lists of named objects by name."""
    service: RouterService = RouterService()
    """The Service that clients reach."""
    session_store: SessionStore | None = None
    """A store that replicas share."""
    affinity: Affinity = Affinity.NONE
    """Header: a load balancer in front keeps the requests of one X-Session-ID on one replica."""
    tenancy: Tenancy = Tenancy.AUTHORIZATION
    """What separates tenants: the Authorization header, x-duplex-tenant (a gateway must set it), or nothing."""
    auth: Auth | None = None
    """Keys that clients must show."""
    tls: Tls | None = None
    """Encryption towards clients."""
    limits: RouterLimits | None = None
    """Bounds on what clients may ask."""
