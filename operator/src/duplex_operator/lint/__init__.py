"""What `duplex lint` says of a resource before it is applied: the cluster's own verdicts, found without a cluster."""

from duplex_operator.lint.findings import Finding, Severity
from duplex_operator.lint.lint import lint_documents, lint_object, stored
from duplex_operator.lint.memory import ConfigError, KvShape, ModelFiles, kv_shape, read_model

__all__ = [
    "ConfigError",
    "Finding",
    "KvShape",
    "ModelFiles",
    "Severity",
    "kv_shape",
    "lint_documents",
    "lint_object",
    "read_model",
    "stored",
]
