"""The same seed trains the same, to the last bit: in this process and in a new one, and in copies of another kind."""

import pytest

from stress.determinism import in_new_process, settings, train

UNRELATED = [f"DAPO, {copies}, Pendulum-v1, 2, unrelated starts" for copies in ("DummyVecEnv", "SubprocVecEnv")]
OTHERS = [
    "GRPO, DummyVecEnv, CartPole-v1, 2, shared starts",
    "DAPO, SubprocVecEnv, CartPole-v1, 2, shared starts",
    "GRPO, VerifierTextVecEnv, 4",
]


@pytest.mark.slow
def test_the_same_in_a_new_process_and_in_other_copies() -> None:
    names = [*UNRELATED, *OTHERS]
    here = {name: train(settings()[name], None) for name in names}
    # Others come first: what a training leaves in its process must not matter to the next one
    assert in_new_process(names[::-1]) == here
    assert here[UNRELATED[0]] == here[UNRELATED[1]]
    assert len({*here.values()}) == 4
