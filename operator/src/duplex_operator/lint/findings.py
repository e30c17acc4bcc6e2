"""What lint finds, and the paths of fields as the API server writes them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """`error`: the cluster refuses it, or the operator stalls on it. `warning`: it runs, perhaps not as meant."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """One thing to know about a field, such as `spec.engine.env[1]`; the path is empty for the whole object."""

    severity: Severity
    field: str
    message: str

    def __str__(self) -> str:
        where = f"{self.field}: " if self.field else ""
        return f"{self.severity.value}: {where}{self.message}"


def error(field: str, message: str) -> Finding:
    """Return an error."""
    return Finding(Severity.ERROR, field, message)


def warning(field: str, message: str) -> Finding:
    """Return a warning."""
    return Finding(Severity.WARNING, field, message)


def note(field: str, message: str) -> Finding:
    """Return a note."""
    return Finding(Severity.NOTE, field, message)


def member(path: str, name: str) -> str:
    """Return the path of a member of an object."""
    return f"{path}.{name}" if path else name
