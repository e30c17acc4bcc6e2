"""House rules that a reader would otherwise have to remember."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LONGEST_FILE = 450


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_the_standard_librarys_operator_is_not_shadowed() -> None:
    assert not (ROOT / "operator/__init__.py").exists()


def test_no_file_names_a_registry_or_a_machine() -> None:
    hosts = "|".join(("python" + "hosted", "npm" + "js", "go" + "proxy", "proxy.golang" + ".org"))
    bad = re.compile(rf"https?://[a-z.]*(?:{hosts})|(?<![\w.])/(?:wo)rk/|/(?:ro)ot/\.")
    for path in tracked():
        if path.suffix in {".png", ".tar"}:
            continue
        assert not bad.search(path.read_text(errors="ignore")), path


def test_python_files_stay_short() -> None:
    long = {
        str(path): count for path in tracked("*.py") if (count := len(path.read_text().splitlines())) > LONGEST_FILE
    }
    assert not long
