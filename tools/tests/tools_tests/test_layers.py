"""The import direction: lower layers never import higher ones, and effects stay where they belong."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SOURCES = {
    "duplex_connector": ROOT / "connector/src/duplex_connector",
    "duplex_kube": ROOT / "operator/src/duplex_kube",
    "duplex_operator": ROOT / "operator/src/duplex_operator",
    "duplex_router": ROOT / "router/src/duplex_router",
    "duplex_simulator": ROOT / "simulator/src/duplex_simulator",
    "duplex_lab": ROOT / "e2e/lab/src/duplex_lab",
}
# Which packages of ours each package may import.
PACKAGES = {
    "duplex_connector": set(),
    "duplex_kube": set(),
    "duplex_simulator": {"duplex_connector"},
    "duplex_router": {"duplex_connector", "duplex_kube"},
    "duplex_operator": {"duplex_connector", "duplex_kube"},
    "duplex_lab": set(),
}
# Layers inside a package, lowest first; modules in one set do not import one another.
LAYERS = {
    "duplex_router": [
        {"settings"},
        {"wire"},
        {"ledger", "fleet"},
        {"turn"},
        {"http"},
        {"store", "admin", "source"},
        {"options"},
        {"service"},
        {"cli"},
    ],
    "duplex_operator": [
        {"api"},
        {"render", "plan", "lint"},
        {"rehearsal"},
        {"runtime"},
        {"reconcile"},
        {"handlers"},
        {"cli", "duplex"},
        {"__main__"},
    ],
}
PURE = {
    "duplex_operator": {"api", "render", "plan", "lint", "rehearsal"},
    "duplex_router": {"wire", "ledger", "fleet"},
}
EFFECTS = {"asyncio", "time", "kopf", "kubernetes", "aiohttp", "socket", "subprocess", "duplex_kube", "uvloop"}
# Third-party clients and the only places that may import them.
ONLY_IN = {
    "kubernetes": {"duplex_kube.client"},
    "kopf": {"duplex_operator.handlers", "duplex_operator.cli"},
    "vllm": {"duplex_connector"},
    "torch": {"duplex_connector"},
}


def modules() -> Iterator[tuple[str, Path]]:
    for package, folder in SOURCES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = (package, *path.relative_to(folder).with_suffix("").parts)
            yield ".".join(part for part in parts if part != "__init__"), path


def imports_of(module: str, path: Path) -> set[str]:
    """Every module that the file imports, absolute; names imported from a package count as its submodules."""
    found = set()
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([node.module] if node.module else [])])
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return found


MODULES = list(modules())


@pytest.mark.parametrize(("module", "path"), MODULES, ids=[module for module, _ in MODULES])
def test_imports_go_downwards(module: str, path: Path) -> None:
    package, _, inside = module.partition(".")
    layer = inside.partition(".")[0]
    for name in imports_of(module, path):
        top, _, rest = name.partition(".")
        if top in SOURCES and top != package:
            assert top in PACKAGES[package], f"{module} imports {name}"
        if top == package and package in LAYERS and layer and rest:
            ranks = {part: rank for rank, parts in enumerate(LAYERS[package]) for part in parts}
            other = rest.partition(".")[0]
            if layer in ranks and other in ranks and other != layer:
                assert ranks[other] < ranks[layer], f"{module} imports {name}, which is not below it"
        if layer in PURE.get(package, ()):
            assert top not in EFFECTS, f"{module} is pure and imports {name}"
        if top in ONLY_IN:
            assert any(module == home or module.startswith(f"{home}.") for home in ONLY_IN[top]), (
                f"{module} imports {name}"
            )


@pytest.mark.parametrize("package", LAYERS)
def test_every_module_has_a_layer(package: str) -> None:
    known = set().union(*LAYERS[package])
    inside = {module.split(".")[1] for module, _ in MODULES if module.startswith(f"{package}.")}
    assert inside <= known, f"name a layer for {sorted(inside - known)}"


def test_the_connector_needs_only_the_standard_library() -> None:
    for module, path in MODULES:
        if module.startswith("duplex_connector") and not module.startswith("duplex_connector.nixl"):
            tops = {name.partition(".")[0] for name in imports_of(module, path)} - {"", "duplex_connector"}
            assert tops <= sys.stdlib_module_names | {"__future__"}, module
