"""One run: its evaluations, its clock, its networks, and what it writes down."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.vec_env import VecEnvWrapper, VecNormalize

pytest.importorskip("rl_zoo3")
pytest.importorskip("rliable")

from compare_data import SMALL_GROUPS, TINY, read

from sb3_grpo.classroom.compare import recorder, training
from sb3_grpo.classroom.compare.build import build, count_parameters, describe_network
from sb3_grpo.classroom.compare.definition import make_experiment
from sb3_grpo.classroom.compare.evaluation import Evaluator
from sb3_grpo.classroom.compare.experiment import Experiment

pytestmark = pytest.mark.usefixtures("keep_threads")


def train(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """
    Make the first run of an experiment.

    :return: Its settings
    """
    settings = {**experiment.settings(experiment.jobs()[0]), "clips": False}
    training.train(settings, folder, lambda n_steps: None)
    return settings


@pytest.mark.parametrize(
    ("env", "algo", "hyperparams"),
    [
        ("CartPole-v1", "dapo", SMALL_GROUPS),
        ("Pendulum-v1", "ppo", {"n_envs": 2, "n_steps": 64, "normalize": True, "use_sde": True, "sde_sample_freq": 4}),
        ("Pendulum-v1", "grpo", {**SMALL_GROUPS, "use_sde": True}),
        ("CartPole-v1", "trpo", {"n_envs": 2, "n_steps": 64, "batch_size": 128}),
        ("CartPoleNoVel-v1", "grpo", SMALL_GROUPS),
        ("CartPoleNoVel-v1", "ppo_lstm", {"n_envs": 2, "n_steps": 64, "n_epochs": 1}),
        ("InvalidActionEnvDiscrete-v0", "ppo_mask", {"n_envs": 2, "n_steps": 64, "n_epochs": 1}),
    ],
)
def test_evaluations_do_not_disturb_the_training(
    env: str, algo: str, hyperparams: dict[str, Any], tmp_path: Path, strict: list[Any]
) -> None:
    content = TINY | {"envs": [env], "variants": [{"algo": algo, "hyperparams": hyperparams}], "timesteps": 1000}
    experiment = make_experiment(content | {"n_eval_episodes": 1, "n_final_episodes": 1}, "test")
    settings = train(experiment, tmp_path)
    assert len(read(tmp_path / "evaluations.csv")) == 12
    with build(settings) as built:
        # No policy has learned from more steps than the budget: what is left of it is not enough for another rollout
        alone = built.model.learn(1000, callback=lambda *_: built.model.num_timesteps <= 1000)
        evaluated = type(alone).load(tmp_path / "model.zip")
        assert evaluated.num_timesteps == alone.num_timesteps <= 1000 + alone.n_envs
        for one, other in zip(alone.policy.parameters(), evaluated.policy.parameters(), strict=True):
            assert th.equal(one, other)


def test_seconds_are_those_of_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Any) -> None:
    def evaluate(*arguments: Any) -> list[dict[str, Any]]:
        clock.now += 1000.0
        return original(*arguments)

    original = Evaluator.evaluate
    monkeypatch.setattr(Evaluator, "evaluate", evaluate)
    monkeypatch.setattr(recorder, "time", clock)
    experiment = make_experiment(TINY, "test")
    train(experiment, tmp_path)
    assert 0 < json.loads((tmp_path / "result.json").read_text())["seconds"] < 1000
    assert 0 < float(read(tmp_path / "evaluations.csv")[-1]["seconds"]) < 1000


def test_evaluation_sees_what_the_policy_is_used_to_and_repeats_itself() -> None:
    hyperparams = {"normalize": True, "use_sde": True, "n_envs": 2, "n_steps": 64}
    content = TINY | {"envs": ["Pendulum-v1"], "variants": [{"algo": "ppo", "hyperparams": hyperparams}]}
    experiment = make_experiment(content, "test")
    with build(experiment.settings(experiment.jobs()[0])) as built:
        built.model.learn(200)
        envs: list[Any] = []

        def make_envs(n_envs: int) -> Any:
            envs.append(built.evaluation_envs(n_envs))
            return envs[-1]

        evaluator = Evaluator(built.model, make_envs)
        first = evaluator.evaluate(2, False)
        th.rand(1)  # other code draws random numbers
        assert evaluator.evaluate(2, False) == first
        assert first[0]["return_mean"] != first[1]["return_mean"], "stochastic actions are others"
        assert evaluator.evaluate(2, True)[0]["return_mean"] != first[0]["return_mean"], "other starts at the end"
        normalizer = built.model.get_vec_normalize_env()
        assert isinstance(envs[0], VecNormalize) and normalizer is not None and not envs[0].norm_reward
        assert (envs[0].obs_rms.mean == normalizer.obs_rms.mean).all()
        assert normalizer.obs_rms.count > 100  # type: ignore[union-attr]


def test_all_runs_are_evaluated_on_the_same_starts() -> None:
    """Or their scores would depend on each other through the starts, and with them on the seed."""
    starts = []

    class Seen(VecEnvWrapper):
        def reset(self) -> Any:
            starts.append(self.venv.reset())
            return starts[-1]

        def step_wait(self) -> Any:
            return self.venv.step_wait()

    experiment = make_experiment(TINY | {"variants": ["ppo"]}, "test")
    for job in experiment.jobs():
        with build(experiment.settings(job)) as built:
            envs = Seen(built.evaluation_envs(3))
            Evaluator(built.model, lambda n_envs, envs=envs: envs).evaluate(3, True)  # type: ignore[misc]
    assert len(starts) == 4 and all(np.array_equal(each, starts[0]) for each in starts)
    assert len(np.unique(starts[0], axis=0)) == 3


@pytest.mark.filterwarnings("ignore:No update at")
def test_dropped_steps_are_counted(tmp_path: Path) -> None:
    # Nobody falls within 5 steps: all returns are equal, and all groups dropped
    content = TINY | {"variants": [{"algo": "dapo", "hyperparams": SMALL_GROUPS | {"env_kwargs": {"max_episode_steps": 5}}}]}
    experiment = make_experiment(content, "test")
    train(experiment, tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    assert 0.9 < result["discarded_fraction"] <= 1.0 and result["steps"] >= 400


NORMALIZED = {"algo": "grpo", "hyperparams": {"policy_kwargs": "dict(normalize_observations=True)"}}


@pytest.mark.parametrize(
    ("env", "variant", "n_parameters", "n_critic", "network"),
    [
        ("CartPole-v1", "ppo", 9155, 4545, "64-64 Tanh"),
        ("CartPole-v1", "trpo", 9155, 4545, "64-64 Tanh"),
        ("CartPole-v1", "grpo", 4610, 0, "64-64 Tanh"),
        ("CartPole-v1", NORMALIZED, 4610, 0, "64-64 Tanh"),
        ("CartPoleNoVel-v1", "grpo", 22210, 0, "64 ReLU, LSTM 64"),
        ("CartPoleNoVel-v1", "ppo_lstm", 44355, 22145, "64 ReLU, LSTM 64"),
        ("InvalidActionEnvDiscrete-v0", "ppo_mask", 23953, 9409, "64-64 Tanh"),
    ],
)
def test_networks_and_parameters(env: str, variant: Any, n_parameters: int, n_critic: int, network: str) -> None:
    experiment = make_experiment(TINY | {"envs": [env], "variants": [variant]}, "test")
    with build(experiment.settings(experiment.jobs()[0])) as built:
        assert count_parameters(built.model.policy) == (n_parameters, n_critic)
        assert describe_network(built.model.policy) == network
