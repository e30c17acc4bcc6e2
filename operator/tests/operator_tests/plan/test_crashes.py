"""An engine's last words, as vLLM 0.33 and its libraries write them, end in a cause and what to do about it."""

import pytest

from duplex_operator.plan import pod_of
from duplex_operator.plan.crashes import LONGEST_LINE, cause_of

END = """
(APIServer pid=1)     raise RuntimeError(
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
# A line, and a word of the remedy; `...` stands where vLLM writes more.
CASES = """
(EngineCore pid=90) ValueError: No available memory for the cache blocks. Try increasing ... -> more accelerators
ValueError: ... which is larger than the available KV cache memory (9.2 GiB). ... -> model.maxLength
ValueError: ... on startup is less than desired GPU memory utilization (0.9, 125.8 GiB). ... -> runs on the node
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. -> more accelerators
Value error, Total number of attention heads (40) must be divisible by tensor parallel size (3). -> a divisor
Value error, User-specified max_model_len (200000) is greater than the derived ... -> what the model's config allows
... consider setting `trust_remote_code=True` in LLM or using the `--trust-remote-code` flag -> --trust-remote-code
vllm: error: unrecognized arguments: --no-such-flag -> correct engine.args
RuntimeError: NIXL is not available -> images/engine-efa
huggingface_hub.errors.GatedRepoError: 403 Client Error. -> tokenSecretRef
OSError: [Errno 28] No space left on device -> ephemeral storage
python3: error while loading shared libraries: libfabric.so.1: cannot open ... -> lacks a library
"""
PAIRS = [tuple(line.split(" -> ")) for line in CASES.strip().splitlines()]


@pytest.mark.parametrize(("line", "remedy"), PAIRS)
def test_a_cause_is_found_above_the_last_lines(line: str, remedy: str) -> None:
    found = cause_of("INFO starting\n" + line + END)
    assert found is not None
    assert found.line == line.strip()[-LONGEST_LINE:]
    assert remedy in found.remedy


def test_nothing_is_made_up() -> None:
    assert cause_of("") is None
    assert cause_of("Traceback\nKeyError: 'x'") is None


def test_it_becomes_the_pods_trouble() -> None:
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": PAIRS[0][0] + END + "x" * 2000}}
    status = {"containerStatuses": [{"name": "engine", "restartCount": 2, "ready": False, "state": ended}]}
    trouble = pod_of({"metadata": {"name": "p"}, "status": status}).trouble
    assert trouble is not None
    assert "No available memory for the cache blocks" in trouble.message
    assert "the weights leave no room for KV" in trouble.message
    assert "xxxx" not in trouble.message


def test_what_the_preflight_says_is_left_as_it_is() -> None:
    said = "no space left on device: mount a volume at /dev/shm"
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": said}}
    status = {"initContainerStatuses": [{"name": "preflight", "restartCount": 0, "ready": False, "state": ended}]}
    trouble = pod_of({"metadata": {"name": "p"}, "status": status}).trouble
    assert trouble is not None
    assert trouble.message.endswith(said)


def test_a_container_that_took_too_much_memory_is_told_so() -> None:
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    status = {"containerStatuses": [{"name": "engine", "restartCount": 1, "ready": False, "state": ended}]}
    trouble = pod_of({"metadata": {"name": "p"}, "status": status}).trouble
    assert trouble is not None
    assert "limits.memory" in trouble.message
