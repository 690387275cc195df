"""The same seed trains the same, to the last bit: in this process and in a new one, and in copies of another kind."""

import pytest

from stress.determinism import TEXT, Setting, in_new_process, train

SHARED = Setting("GRPO", "DummyVecEnv", "CartPole-v1", 2)
UNRELATED = [Setting("DAPO", copies, "Pendulum-v1", 2, unrelated=True) for copies in ("DummyVecEnv", "SubprocVecEnv")]
SUBPROC = Setting("DAPO", "SubprocVecEnv", "CartPole-v1", 2)
SUMS = Setting("GRPO", TEXT, "sums", 4)


@pytest.mark.slow
def test_the_same_in_a_new_process_and_in_other_copies() -> None:
    here = {setting: train(setting) for setting in (SHARED, *UNRELATED, SUBPROC, SUMS)}
    # Others come first: what a training leaves in its process must not matter to the next one
    assert in_new_process([SUMS, SUBPROC, *UNRELATED[::-1], SHARED]) == here
    assert here[UNRELATED[0]] == here[UNRELATED[1]]
    assert len({*here.values()}) == 4
