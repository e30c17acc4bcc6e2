"""The conformance suite's table, its last line, and the comparison of two runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.compare import KNOWN, differences, table
from conformance.report import Report, Row, read_rows


@pytest.fixture
def report() -> Report:
    found = Report("vllm", "0.32.0")
    found.add("edited", "stock", "wrong", pulled=739, tokens=[1, 2, 3, 4], plain=[5, 6, 7, 8])
    found.add("edited", "guarded", "right", pulled=640, tokens=[5, 6, 7, 8], plain=[5, 6, 7, 8])
    found.add("trap 3", "stock", "hang")
    found.add("keys", "stock", "as specified")
    found.end("test_edited[stock]", "stock", passed=True)
    found.end("test_edited[guarded]", "guarded", passed=True)
    found.end("test_trap_3[stock]", "stock", passed=True)
    found.end("test_keys[stock]", "stock", passed=True)
    return found


def test_the_answers_stand_side_by_side(report: Report) -> None:
    lines = report.table().splitlines()
    assert lines[0] == "| check (vllm 0.32.0) | stock | plain | guarded | plain |"
    assert lines[2] == "| edited | wrong: 1 2 3 …, 739 pulled | 5 6 7 … | right: 5 6 7 …, 640 pulled | 5 6 7 … |"
    assert lines[3] == "| trap 3 | hang | - | - | - |"


def test_the_last_line_counts(report: Report) -> None:
    assert report.last_line() == (
        "e2e-vllm: 4 checks on real vLLM 0.32.0 pods, stock wrong or failing 2, guarded right 1 of 1"
    )


def test_a_failed_check_is_in_the_table_and_in_the_last_line(report: Report) -> None:
    report.add("salt", "guarded", "right")
    report.end("test_salt[guarded]", "guarded", passed=False)
    assert "| test_salt[guarded] | - | - | CHECK FAILED | - |" in report.table()
    assert report.last_line().endswith("guarded right 1 of 2, 1 checks FAILED")


def test_what_is_written_is_read_again(report: Report, tmp_path: Path) -> None:
    report.write(tmp_path / "deep" / "conformance-vllm-0.32")
    assert read_rows(tmp_path / "deep" / "conformance-vllm-0.32.json") == report.rows
    text = (tmp_path / "deep" / "conformance-vllm-0.32.md").read_text()
    assert text == f"{report.table()}\n{report.last_line()}\n"


def test_equal_outcomes_are_no_difference() -> None:
    first = [Row("a", "stock", "wrong", 739, note="after 5 s", tokens=(1,)), Row("a", "guarded", "right", 640)]
    second = [Row("a", "guarded", "right", 640, plain=(2,)), Row("a", "stock", "wrong", 739, tokens=(3,))]
    assert differences(first, second) == []


@pytest.mark.parametrize(
    ("other", "outcome"),
    [(Row("a", "stock", "right", 739), "right, 739 pulled"), (Row("a", "stock", "wrong", 3), "wrong, 3 pulled")],
)
def test_another_answer_or_count_is_a_difference(other: Row, outcome: str) -> None:
    (found,) = differences([Row("a", "stock", "wrong", 739)], [other])
    assert (found.first, found.second, found.reason) == ("wrong, 739 pulled", outcome, "")
    assert "UNKNOWN" in table([found], "simulator", "vllm")


def test_a_check_that_one_side_lacks_is_a_difference() -> None:
    (found,) = differences([], [Row("a", "guarded", "right")])
    assert (found.first, found.second) == ("not run", "right")


def test_a_difference_that_is_meant_has_its_reason() -> None:
    check, connector = next(iter(KNOWN))
    (found,) = differences([Row(check, connector, "wrong")], [Row(check, connector, "right")])
    assert found.reason == KNOWN[check, connector]
