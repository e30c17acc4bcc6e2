"""The CRD's CEL rules, evaluated by the CEL project's own runtime instead of the API server."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_strings

from duplex_operator.lint.findings import Finding, error
from duplex_operator.lint.schema import Schema, children


@cache
def _environment() -> Any:  # noqa: ANN401 - the library's Env
    return cel.NewEnv(variables={"self": cel.Type.DYN}, extensions=[ext_strings.ExtStrings()])


@cache
def _compiled(rule: str) -> Any:  # noqa: ANN401 - the library's Expression
    return _environment().compile(rule)


def broken_rules(schema: Schema, value: object, path: str = "") -> list[Finding]:
    """Return the rules that a value breaks; it must have passed the schema and hold its defaults.

    Rules about the object's metadata see its name only, as on the API server.
    """
    found = []
    for rule in schema.get("x-kubernetes-validations", ()):
        result = _compiled(rule["rule"]).eval(data={"self": _visible(value, path)})
        if result.type() != cel.Type.BOOL:
            found.append(error(path, f"{rule['message']} (the rule could not be evaluated: {result.value()})"))
        elif not result.value():
            found.append(error(path, rule["message"]))
    for inner, part, where in children(schema, value, path):
        found += broken_rules(inner, part, where)
    return found


def _visible(value: object, path: str) -> object:
    if path or not isinstance(value, Mapping):
        return value
    name = (value.get("metadata") or {}).get("name", "")
    return {**value, "metadata": {"name": name}}
