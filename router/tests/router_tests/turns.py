"""What the tests of turns share: three turns of a conversation, and looks at holds."""

import json

from .scripted import Json, ScriptedClient, Stage

FIRST: list[Json] = [{"role": "user", "content": "one"}]
SECOND: list[Json] = [*FIRST, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "two"}]


def reuse(client: ScriptedClient) -> bytes:
    return client.headers[b"x-duplex-reuse"]


def error_of(client: ScriptedClient) -> str:
    found: str = json.loads(client.body)["error"]["message"]
    return found


def released(stage: Stage) -> list[str]:
    """Return the holds that were released since the last look."""
    found: list[str] = []
    for params in stage.transport.leases():
        if "duplex" in params and "renew" in params["duplex"]:
            found += [request for request, seconds in params["duplex"]["renew"].items() if seconds == 0]
        else:
            found.append(params["remote_request_id"])
    return found


def held(stage: Stage) -> set[str]:
    return {entry.handle.request_id for entry in stage.core.ledger}
