"""vLLM's benchmark_serving_multi_turn.py, from its source distribution, with what it needs to run by itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any, Final

from bench.router.machine import BenchError
from bench.router.tools import environment, source_files
from harness.conversation import prose

_FOLDER: Final = "benchmarks/multi_turn"
_SCRIPT: Final = f"{_FOLDER}/benchmark_serving_multi_turn.py"
# The script takes one function from vLLM. That file alone spares an installed vLLM: its packages are namespaces then.
_FILES: Final = (
    _SCRIPT,
    f"{_FOLDER}/bench_dataset.py",
    f"{_FOLDER}/bench_utils.py",
    "vllm/benchmarks/lib/utils.py",
)
_NEEDS: Final = (
    "aiohttp==3.14.5",
    "numpy==2.4.6",
    "pandas==3.1.1",
    "tqdm==4.70.1",
    "transformers==5.24.0",
    "xlsxwriter==3.3.1",
)
_FAILED: Final = re.compile(r"Request rejected|Timeout during|Exception during|Received HTTP status")
_WORDS: Final = 200_000
_TOKENIZER: Final = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
words = Tokenizer(models.WordLevel(unk_token="?"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
words.train([sys.argv[1]], trainers.WordLevelTrainer(special_tokens=["?"]))
PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?").save_pretrained(sys.argv[2])
"""


def _constant(value: int) -> dict[str, Any]:
    return {"distribution": "constant", "value": value}


def _uniform(least: int, most: int) -> dict[str, Any]:
    return {"distribution": "uniform", "min": least, "max": most}


class Client:
    """The script, with conversations that it makes by a seed. `folder` takes its files."""

    def __init__(self, folder: Path, *, conversations: int, turns: int, words: int) -> None:
        self._folder = folder
        self._python = environment("vllm-multi-turn", _NEEDS) / "bin/python"
        self._source = source_files(*_FILES)
        text = folder / "text.txt"
        text.write_text(prose("multi-turn", 0, _WORDS))
        self._run([str(self._python), "-c", _TOKENIZER, str(text), str(folder / "tokenizer")], "making a tokenizer")
        settings = {
            "filetype": "generate_conversations",
            "num_conversations": conversations,
            "text_files": [str(text)],
            "print_stats": False,
            "prompt_input": {
                "num_turns": _constant(2 * turns),  # it counts questions and answers
                "common_prefix_num_tokens": _constant(500),
                "prefix_num_tokens": _uniform(words, 2 * words),
                "num_tokens": _uniform(words // 2, words),
            },
            "prompt_output": {"num_tokens": _uniform(40, 80)},
        }
        (folder / "conversations.json").write_text(json.dumps(settings))

    def run(self, url: str, model: str, *, clients: int, active: int) -> list[dict[str, Any]]:
        """Hold the conversations with a server; return what the script says of each request.

        It leaves off those that are not over when the last one has begun. Raises BenchError where a request failed.
        """
        output = self._folder / "stats.json"
        output.unlink(missing_ok=True)
        command = [str(self._python), str(self._source / _SCRIPT), "--model", str(self._folder / "tokenizer")]
        command += ["--served-model-name", model, "--url", url, "--seed", "7", "--no-early-stop"]
        command += ["--input-file", str(self._folder / "conversations.json"), "--stats-json-output", str(output)]
        command += ["--num-clients", str(clients), "--max-active-conversations", str(active)]
        said = self._run(command, "vLLM's multi-turn benchmark")
        failed = [line for line in said.splitlines() if _FAILED.search(line)]
        if failed:
            raise BenchError("requests of vLLM's multi-turn benchmark failed:\n" + "\n".join(failed[:10]))
        found: list[dict[str, Any]] = json.loads(output.read_text())
        return found

    def _run(self, command: list[str], what: str) -> str:
        paths = {**os.environ, "PYTHONPATH": str(self._source), "TRANSFORMERS_OFFLINE": "1"}
        ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self._folder, env=paths)
        said = ran.stdout + ran.stderr
        if ran.returncode:
            raise BenchError(f"{what} failed:\n{said[-3000:]}")
        return said
