"""The kinds that the operator reads and writes, as resources of the API server."""

from typing import Final

from duplex_connector.contract import GROUP, KIND, PLURAL, VERSION
from duplex_kube.api import Resource
from duplex_operator.plan import KEPT_KIND
from duplex_operator.render import CHILD_KINDS

SERVINGS: Final = Resource(GROUP, VERSION, PLURAL, KIND)

KEPT: Final = Resource("apps", "v1", "controllerrevisions", KEPT_KIND)


def _resource(api_version: str, kind: str, plural: str) -> Resource:
    group, _, version = api_version.rpartition("/")
    return Resource(group, version, plural, kind)


CHILDREN: Final = (*(_resource(child.api_version, child.kind, child.plural) for child in CHILD_KINDS), KEPT)
"""Everything that a serving can own directly."""

BY_KIND: Final = {resource.kind: resource for resource in CHILDREN}
