"""All mutations, by part."""

from __future__ import annotations

from .connector import MUTATIONS as CONNECTOR
from .fleet import MUTATIONS as FLEET
from .ledger import MUTATIONS as LEDGER
from .operator import MUTATIONS as OPERATOR
from .scale import MUTATIONS as SCALE
from .store import MUTATIONS as STORE
from .wire import MUTATIONS as WIRE

MUTATIONS = (*CONNECTOR, *LEDGER, *WIRE, *FLEET, *STORE, *OPERATOR, *SCALE)
