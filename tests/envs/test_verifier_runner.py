import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any

import pytest

from sb3_grpo.envs import VerifierError, is_equivalent
from sb3_grpo.envs.verifiers.runner import Check, VerifierRunner

ENV_ID = "sb3_grpo:sb3_grpo/VerifierText-v0"
ROOT = Path(__file__).resolve().parents[2]

# The verifiers are local functions, so that their process need not import this file.


def misbehaving() -> Callable[[str, str], Any]:
    def verifier(answer: str, reference: str) -> Any:
        import os

        if answer == "raise":
            raise KeyError("no such key")
        if answer == "hang":
            while True:
                time.sleep(0.01)
        if answer == "crash":
            os._exit(3)
        special = {"nan": float("nan"), "inf": float("inf"), "none": None, "text": "1", "list": [1], "2": 2, "minus": -0.1}
        return special.get(answer, answer == reference)

    return verifier


BAD = {
    "raise": "KeyError: 'no such key'",
    "hang": r"did not finish within 3 s",
    "crash": "ended its own process .*exit status 3",
    "nan": "returned nan, not a finite number",
    "inf": "returned inf, not a finite number",
    "none": "returned None, not a number",
    "text": "returned '1', not a number",
    "list": r"returned \[1\] of type list, not a number",
    "2": r"returned 2\.0: scores are from 0 \(wrong\) to 1 \(right\)",
    "minus": r"returned -0\.1: scores are from 0",
}


@pytest.mark.parametrize("answer", BAD)
def test_failures_of_the_verifier_raise(answer: str) -> None:
    runner = VerifierRunner(misbehaving(), trusted=False, time_limit=3.0)
    checks = [Check(text, "7", "3+4=") for text in ("7", answer, "7")]
    with pytest.raises(VerifierError, match=f"(?s){BAD[answer]}.*Prompt: '3\\+4='\nAnswer: '{answer}'"):
        runner.score(checks)
    # No result of the answers before is left over
    assert [verdict.value for verdict in runner.score([Check("8", "7", "3+4="), Check("7", "7", "3+4=")])] == [0, 1]
    runner.close()


def test_failures_of_the_verifier_count_as_zero() -> None:
    runner = VerifierRunner(misbehaving(), trusted=False, time_limit=3.0, on_error="zero")
    answers = [text for bad in BAD for text in ("7", bad)] + ["8", "7"]
    with pytest.warns(UserWarning, match="(?s)no such key.*counts as 0"):
        verdicts = runner.score([Check(answer, "7", "3+4=") for answer in answers])
    assert [verdict.value for verdict in verdicts] == [float(answer == "7") for answer in answers]
    assert [verdict.error is not None for verdict in verdicts] == [answer in BAD for answer in answers]
    assert runner.n_errors == len(BAD)
    runner.close()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_one_process_until_it_is_closed() -> None:
    verifier = misbehaving()
    runner, other = (VerifierRunner(verifier, trusted=False) for _ in range(2))
    assert runner.worker_pid is None
    for _ in range(2):
        runner.score([Check("7", "7", "")])
    pid = runner.worker_pid
    assert pid is not None and pid != os.getpid() and is_alive(pid)
    for copied in (deepcopy(runner), pickle.loads(pickle.dumps(runner)), other):
        assert copied.worker_pid is None
        assert copied.score([Check("7", "7", "")])[0].value == 1
        # The environments of a DummyVecEnv need not have a process each
        assert copied.worker_pid == pid
    runner.close()
    assert not is_alive(pid)
    assert runner.score([Check("7", "7", "")])[0].value == 1
    last = runner.worker_pid
    assert last is not None
    del runner, other, copied
    assert not is_alive(last)


def test_a_worker_that_was_killed_is_replaced() -> None:
    runner = VerifierRunner(misbehaving(), trusted=False, on_error="zero")
    runner.score([Check("7", "7", "")])
    assert runner.worker_pid is not None
    os.kill(runner.worker_pid, signal.SIGKILL)
    os.waitid(os.P_PID, runner.worker_pid, os.WEXITED | os.WNOWAIT)
    verdicts = runner.score([Check("7", "7", ""), Check("7", "7", "")])
    assert [verdict.value for verdict in verdicts] == [1, 1], "no answer is to blame for it"
    runner.close()


def test_verifiers_that_cannot_be_sent_to_a_process() -> None:
    lock = Lock()
    with pytest.raises(TypeError, match=r"verifier .*lambda.* cannot be sent to its own process .*pickle.*lock"):
        VerifierRunner(lambda answer, reference: lock.locked(), trusted=False)
    # It can be pickled, as the name of something that the other process does not find
    module = ModuleType("only_here")
    exec("def verifier(answer, reference): return 1", vars(module))
    sys.modules["only_here"] = module
    with pytest.raises(VerifierError, match=r"cannot run in a process of its own: ModuleNotFoundError.*only_here"):
        VerifierRunner(module.verifier, trusted=False, on_error="zero").score([Check("", "", "")])


def test_the_process_does_not_import_this_package() -> None:
    def verifier(answer: str, reference: str) -> bool:
        import sys

        assert not any(name.startswith(("sb3_grpo", "torch")) for name in sys.modules)
        return is_equivalent(answer, reference)

    runner = VerifierRunner(verifier, trusted=False)
    assert [verdict.value for verdict in runner.score([Check("7.0", "7", ""), Check("8", "7", "")])] == [1, 0]
    runner.close()


def test_answers_are_only_data() -> None:
    seen = VerifierRunner(lambda answer, reference: 1 / len(answer), trusted=False)
    answers = ["__import__('os')._exit(1)", "$(exit 1)", "\x00\n\udcff", "a" * 1_000_000]
    verdicts = seen.score([Check(answer, "", "") for answer in answers])
    assert [verdict.value for verdict in verdicts] == [1 / len(answer) for answer in answers]
    seen.close()


def test_a_script_needs_no_main_guard_and_leaves_no_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import gymnasium as gym\n"
        f"def verifier(answer, reference):\n    return answer == reference\n"
        f"env = gym.make({ENV_ID!r}, verifier=verifier)\n"
        f"env.reset(options={{'item': 34}})\n"
        f"env.step(7)\n"
        f"print(env.step(12)[1], env.unwrapped.rules.runner.worker_pid)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True, timeout=600
    )
    reward, pid = done.stdout.split()
    assert reward == "1.0" and done.stderr == ""
    assert not Path(f"/proc/{pid}").exists()
