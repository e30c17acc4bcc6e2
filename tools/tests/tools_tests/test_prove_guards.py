"""The proof of the guards: its table follows the source, and it tells a caught mutation from all else."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))

from prove_guards.__main__ import main, prove, unmutated  # noqa: E402 - tools/ is on the path only from here
from prove_guards.mutation import AnchorError, Mutation  # noqa: E402 - the same
from prove_guards.table import MUTATIONS  # noqa: E402 - the same

pytestmark = pytest.mark.timeout(600)  # each proof starts a pytest of its own

NAMES = [f"{mutation.guard}: {mutation.how}" for mutation in MUTATIONS]

REQUIRED = {
    "token proof",
    "proof seed: adapter",
    "proof seed: cache salt",
    "content match on stock",
    "single use on stock",
    "no release under a pull",
    "expiry margin",
    "tenant",
    "boot",
    "strip in",
    "cut out",
    "threshold",
    "P-failure rule",
}


def test_every_safety_guard_is_in_the_table() -> None:
    assert {mutation.guard for mutation in MUTATIONS} >= REQUIRED
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=NAMES)
def test_a_mutation_has_its_place_and_its_test(mutation: Mutation) -> None:
    changed = mutation.applied_to((ROOT / mutation.file).read_text())
    if mutation.file.endswith(".py"):
        ast.parse(changed)
    file, _, test = mutation.test.partition("::")
    defined = {
        node.name
        for node in ast.walk(ast.parse((ROOT / file).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert test in defined


SOURCE = "def safe(value):\n    return value > 0\n"
TESTS = """
from guard import safe

def test_notices():
    assert not safe(-1)

def test_does_not_notice():
    assert safe(1)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "guard.py").write_text(SOURCE)
    (tmp_path / "test_guard.py").write_text(TESTS)
    return tmp_path


def mutation(replacement: str, test: str) -> Mutation:
    return Mutation("guard", "how", "guard.py", "return value > 0", replacement, f"test_guard.py::{test}")


def test_a_test_that_fails_without_the_guard_catches_it(tree: Path) -> None:
    assert prove(mutation("return True", "test_notices"), tree).caught
    assert (tree / "guard.py").read_text() == SOURCE


def test_a_test_that_passes_without_the_guard_does_not(tree: Path) -> None:
    verdict = prove(mutation("return True", "test_does_not_notice"), tree)
    assert not verdict.caught
    assert "passes" in verdict.why


@pytest.mark.parametrize(("replacement", "test"), [("return", "test_nowhere"), ("!", "test_notices")])
def test_a_test_that_does_not_run_proves_nothing(tree: Path, replacement: str, test: str) -> None:
    verdict = prove(mutation(replacement, test), tree)
    assert not verdict.caught
    assert "did not run" in verdict.why


@pytest.mark.parametrize("source", ["nowhere", "value"])
def test_a_fragment_that_is_not_there_exactly_once_is_an_error(source: str) -> None:
    with pytest.raises(AnchorError):
        Mutation("guard", "how", "guard.py", source, "x", "t").applied_to(SOURCE)


def test_tests_that_fail_on_the_source_as_it_is_are_told(tmp_path: Path) -> None:
    broken = Mutation("guard", "how", "guard.py", "x", "y", "tools/tests/tools_tests/test_nowhere.py::test_nothing")
    assert unmutated([broken], tmp_path)


def test_a_name_that_no_guard_has_is_refused_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["--only", "no such guard"])
    assert refused.value.code == 2
    assert "cut out" in capsys.readouterr().err
