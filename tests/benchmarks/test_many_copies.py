"""The defaults on simulators whose copies are in lockstep, and what of them is remembered."""

import pytest
from stable_baselines3.common.evaluation import evaluate_policy

from benchmarks.many_copies import Points
from sb3_grpo import GRPO


def mean_return(model: GRPO) -> float:
    return float(evaluate_policy(model, Points(16, seed=1), 16, warn=False)[0])  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_defaults_learn_from_a_thousand_copies_in_lockstep() -> None:
    model = GRPO("MlpPolicy", Points(1024, seed=0), unrelated_starts=True, seed=0, device="cpu")
    untrained = mean_return(model)
    # Four updates, the last of which ends before the first episodes do
    model.learn(65_536)
    assert mean_return(model) > untrained / 2


@pytest.mark.parametrize(("n_envs", "many"), [(128, False), (129, True)])
def test_many_copies_are_judged_by_a_fit_of_their_own_steps(n_envs: int, many: bool) -> None:
    model = GRPO("MlpPolicy", Points(n_envs, seed=0), unrelated_starts=True, device="cpu")
    assert model.value_regression.fits_first is many
