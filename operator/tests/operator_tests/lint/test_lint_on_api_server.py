"""The bad files on the real API server: what lint refuses there, it refuses too, and in the same words."""

from pathlib import Path

import pytest

from duplex_lab.control_plane import ControlPlane
from duplex_operator.lint import lint_documents
from operator_tests.lint.test_lint import BAD, expected

pytestmark = pytest.mark.apiserver

OPERATORS_OWN = {"fewer-than-a-node"}
"""What only the operator finds, and answers with the condition Stalled: see `validate`."""


LINTS_OWN = {"duplicate-key"}
"""What no cluster can see: kubectl sends the last of two equal keys."""


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_the_cluster_agrees(path: Path, control_plane: ControlPlane) -> None:
    answer = control_plane.kubectl("apply", "--dry-run=server", "-f", str(path), check=False)
    if path.stem in OPERATORS_OWN | LINTS_OWN:
        assert answer.returncode == 0, answer.stderr
        return
    assert answer.returncode != 0
    message = expected(path).split(": ", 2)[-1]
    if message.startswith(
        ("args:", "env:", "instanceType:", "kvTransfer", "tensorParallelSize:", "version:", "source:")
    ):
        assert message in answer.stderr
    assert lint_documents(path.read_text())[0][1]
