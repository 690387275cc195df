"""Recurrent policies: what an episode has shown is remembered, and an update sees what the rollout saw."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv

from sb3_grpo import DAPO, GRPO, TrainingCheckpoint, VisitedStates, make_group_env
from sb3_grpo.checkpoint.folder import checkpoints_in
from sb3_grpo.common.acting import Actor
from sb3_grpo.common.batch import Minibatch, RecurrentSteps
from sb3_grpo.common.recurrent import RecurrentActorPolicy
from sb3_grpo.utils.action_masks import n_choices
from stress.resume import digest

LSTM: dict[str, Any] = {"lstm_hidden_size": 16, "n_lstm_layers": 2, "net_arch": [8]}
SMALL: dict[str, Any] = {"device": "cpu", "seed": 0, "group_size": 2, "batch_size": 64, "policy_kwargs": LSTM}
# The policy stays as it is
FROZEN = {**SMALL, "n_epochs": 1, "learning_rate": 0.0}
IMAGE = spaces.Box(0, 255, (1, 36, 36), np.uint8)
READS: dict[str, spaces.Space] = {"Mlp": spaces.Box(-1.0, 1.0, (3,)), "Cnn": IMAGE}
READS["MultiInput"] = spaces.Dict({"Mlp": READS["Mlp"], "Cnn": IMAGE})


class Corridor(gym.Env):
    """Only the first observation shows which of two doors at the end is the right one."""

    def __init__(self, reads: str = "Mlp", actions: spaces.Space | None = None, length: int = 4, limit: bool = False):
        self.reads, self.observation_space = reads, READS[reads]
        self.action_space = spaces.Discrete(2) if actions is None else actions
        self.length, self.limit = length, limit

    def _observe(self) -> Any:
        cue = (2 * self.cue - 1) * (self.time == 0)
        vector = np.array([cue, self.time / 10 % 1, self.np_random.uniform(-0.1, 0.1)], np.float32)
        seen = {"Mlp": vector, "Cnn": np.full(IMAGE.shape, 128 + 100 * cue, np.uint8)}
        return seen.get(self.reads, seen)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time, self.cue = 0, int(self.np_random.integers(2))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        is_over = self.time == self.length
        reward = float(is_over and (np.ravel(action)[0] > 0) == self.cue)
        return self._observe(), reward, is_over and not self.limit, is_over and self.limit, {}

    def get_state(self) -> Any:
        return self.time, self.cue, self.np_random.bit_generator.state

    def set_state(self, state: Any) -> None:
        self.time, self.cue, self.np_random.bit_generator.state = state


class MaskedCorridor(Corridor):
    """Some actions are forbidden, others at each step."""

    def action_masks(self) -> np.ndarray:
        self.allowed = [np.roll(np.arange(n) <= self.time % n, self.cue) for n in n_choices(self.action_space)]
        return np.concatenate(self.allowed)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not all(allowed[part] for allowed, part in zip(self.allowed, np.ravel(action), strict=True)):
            raise ValueError(f"{action} is forbidden")
        return super().step(action)


class Cautious(RecurrentActorPolicy):
    """Has a distribution of its own."""

    def get_distribution(self, obs: Any, action_masks: Any = None) -> Any:
        distribution: Any = super().get_distribution(obs, action_masks)
        return distribution.proba_distribution(2.0 * distribution.distribution.logits)


def corridors(cls: type[Corridor] = Corridor, n_envs: int = 4, **kwargs: Any) -> VecEnv:
    return make_group_env(cls, n_envs=n_envs, seed=0, env_kwargs=kwargs)


@pytest.mark.parametrize("settings", [{"n_steps": 64}, {"n_groups": 16, "kl_coef": 0.001}], ids=["steps", "groups"])
def test_remembers_what_it_has_seen(settings: dict[str, Any]) -> None:
    evaluate = EvalCallback(corridors(n_envs=1), eval_freq=200, n_eval_episodes=5, verbose=0)
    model: Any = GRPO(
        "MlpLstmPolicy",
        corridors(n_envs=8),
        **{**SMALL, "policy_kwargs": {"lstm_hidden_size": 32, "net_arch": []}, "learning_rate": 5e-3, **settings},
    ).learn(4_000, callback=evaluate)
    assert evaluate.last_mean_reward == 1.0
    assert evaluate_policy(model, corridors(), n_eval_episodes=100, warn=False)[0] == 1.0


DISCRETE, MULTI, BOX = spaces.Discrete(3), spaces.MultiDiscrete([3, 4]), spaces.Box(-1.0, 1.0, (2,))


@pytest.mark.parametrize("settings", [{"n_steps": 25}, {"n_groups": 6, "kl_coef": 0.1}], ids=["steps", "groups"])
@pytest.mark.parametrize(
    ("cls", "actions", "policy", "kwargs"),
    [
        (MaskedCorridor, DISCRETE, "MlpLstmPolicy", {}),
        (MaskedCorridor, MULTI, "CnnLstmPolicy", {}),
        (MaskedCorridor, MULTI, "MultiInputLstmPolicy", {}),
        (MaskedCorridor, DISCRETE, Cautious, {}),
        (Corridor, BOX, "MlpLstmPolicy", {"use_sde": True}),
        (Corridor, BOX, "MultiInputLstmPolicy", {"advantage": "return_to_go", "n_steps": None, "n_groups": 3}),
    ],
)
def test_the_update_sees_what_the_rollout_saw(
    cls: type[Corridor], actions: spaces.Space, policy: Any, kwargs: dict[str, Any], settings: dict[str, Any]
) -> None:
    reads = policy.removesuffix("LstmPolicy") if isinstance(policy, str) else "Mlp"
    env = corridors(cls, reads=reads, actions=actions, length=7)
    model = DAPO(policy, env, **{**FROZEN, "dynamic_sampling": False, **settings, **kwargs}).learn(300)
    values = model.logger.name_to_value
    assert values["train/ratio_max"] == pytest.approx(1.0, abs=1e-5)
    # Differences of numbers near 1 in single precision
    assert values["train/approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert values.get("train/kl_ref", 0.0) == pytest.approx(0.0, abs=1e-6)
    assert bool(model.policy.observation_norm.keys) == (actions is BOX)


class Compare(BaseCallback):
    """Predicts what the rollout does."""

    state, dones = None, None

    def _on_step(self) -> bool:
        _, self.state = self.model.predict(self.locals["obs"], self.state, self.dones)
        self.dones = self.locals["dones"]
        assert self.state is not None
        states: Any = self.model.collector.states  # type: ignore[attr-defined]
        expected = np.stack(self.state).transpose(2, 0, 1, 3) * ~self.dones[:, None, None, None]
        np.testing.assert_allclose(states, expected, atol=1e-5)
        return True


def test_predict_remembers_as_the_rollout_does() -> None:
    model, callback = GRPO("MlpLstmPolicy", corridors(length=7), **FROZEN, n_steps=16), Compare()
    model.learn(150, callback=callback)
    # The episodes in progress go on
    model.learn(150, callback=callback, reset_num_timesteps=False)
    observation = corridors().reset()[0]
    action, state = model.predict(observation, deterministic=True)
    assert action.shape == () and state is not None and [each.shape for each in state] == [(2, 1, 16)] * 2
    with pytest.warns(UserWarning, match="no state in the middle of an episode"):
        model.predict(observation, episode_start=np.array([False]))
    with pytest.raises(ValueError, match=r"state has the shape \(2, 2, 1, 16\), and 3 observations need \(2, 2, 3, 16\)"):
        model.predict(np.zeros((3, 3), np.float32), state)
    with pytest.raises(ValueError, match="mixing Gym API with SB3 VecEnv API"):
        model.predict((observation, {}))  # type: ignore[arg-type]


def test_evaluations_remember_and_only_do_what_is_allowed() -> None:
    env: Any = corridors(MaskedCorridor, length=8)
    model: Any = GRPO("MlpLstmPolicy", env, **SMALL, n_steps=16)
    assert evaluate_policy(Actor(model, env), env, n_eval_episodes=20, deterministic=False)[0] > 0  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"action_masks has the shape \(2,\), and for 4 observations"):
        model.predict(env.reset(), action_masks=np.array([True, False]))


@pytest.mark.parametrize("limit", [True, False])
def test_values_know_what_the_policy_remembers(limit: bool) -> None:
    model = GRPO("MlpLstmPolicy", corridors(length=7, limit=limit), **FROZEN, n_steps=16).learn(64)
    batch: Any = model.batch
    going_on = batch.next_observations
    assert len(going_on.states) == len(batch.unfinished) > (4 if limit else 0)
    last = (batch.lengths.flatten().cumsum(0) - 1)[batch.unfinished]
    rows = batch.rows[last]
    _, after = model.policy._remember(RecurrentSteps(batch.observations[rows], batch.states[rows]))
    th.testing.assert_close(going_on.states, after)
    # With gaps, as where steps are left out of the loss, the memory is still the whole one
    kept = th.arange(len(batch.rows))[batch.time != 2]
    part = Minibatch(kept, np.arange(batch.lengths.numel()), 1)
    log_prob = model.policy.get_distribution(batch.observations_at(part)).log_prob(batch.actions[batch.rows[kept]])
    th.testing.assert_close(log_prob, batch.old_log_prob[batch.rows[kept]])
    assert model.policy.state_features(going_on).pictures.shape[1] == 2 * 16


def test_gradients_flow_through_time() -> None:
    policy = RecurrentActorPolicy(READS["Mlp"], spaces.Discrete(2), lambda _: 1e-3, **LSTM)
    obs = th.rand(5, 3, requires_grad=True)
    sequence, time = th.tensor([0, 0, 1, 1, 1]), th.tensor([0, 1, 0, 1, 2])
    states = th.rand(2, *policy.state_shape)
    policy.get_distribution(RecurrentSteps(obs, states, sequence, time)).entropy()[4].backward()
    assert obs.grad is not None and obs.grad.any(1).tolist() == [False, False, True, True, True]


@pytest.mark.parametrize(
    "settings",
    [{"n_steps": 10}, {"n_groups": 3}, {"n_steps": 10, "start_sampler": VisitedStates(0.8)}],
    ids=["steps", "groups", "mid-episode"],
)
def test_an_interrupted_training_goes_on(settings: dict[str, Any], tmp_path: Path) -> None:
    model = GRPO("MlpLstmPolicy", corridors(MaskedCorridor, length=8), **SMALL, n_epochs=2, **settings)
    model.learn(300, callback=TrainingCheckpoint(tmp_path, save_freq=1, keep=100))
    path = checkpoints_in(tmp_path)[3]
    assert digest(GRPO.resume(path, corridors(MaskedCorridor, length=8)).learn()) == digest(model)


@pytest.mark.parametrize("file_format", ["sb3", "safe"])
def test_save_and_load(file_format: str, tmp_path: Path) -> None:
    env = corridors(reads="MultiInput")
    model = GRPO("MultiInputLstmPolicy", env, **SMALL, n_groups=2, n_epochs=1).learn(30)
    model.save(tmp_path / "model", format=file_format)
    loaded = GRPO.load(tmp_path / "model", device="cpu", trusted=file_format == "sb3")
    obs: Any = env.reset()
    state = model.predict(obs)[1]
    for mine, read in zip(model.predict(obs, state)[1] or (), loaded.predict(obs, state)[1] or (), strict=True):
        np.testing.assert_array_equal(mine, read)


def test_what_is_not_possible(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"kl_coef=0.1 with RecurrentActorPolicy needs whole episodes.* n_groups=4"):
        GRPO("MlpLstmPolicy", corridors(), **SMALL, n_steps=16, kl_coef=0.1)
    for wrong, message in (
        ({"lstm_hidden_size": 0}, "lstm_hidden_size must be"),
        ({"lstm_hidden": 8}, "RecurrentActorPolicy has no argument 'lstm_hidden': did you mean 'lstm_hidden_size'?"),
        ({"lstm_kwargs": {}}, "no argument 'lstm_kwargs': leave it out. The LSTM has lstm_hidden_size"),
        ({"enable_critic_lstm": True}, "'enable_critic_lstm': leave it out, as there is no critic"),
    ):
        with pytest.raises(ValueError, match=message):
            GRPO("MlpLstmPolicy", corridors(), policy_kwargs=wrong)
    with pytest.raises(ValueError, match="remembers earlier observations"):
        GRPO("MlpLstmPolicy", corridors(), **SMALL).export_onnx(tmp_path / "model")


class Sharp(RecurrentActorPolicy):
    """Overrides what lies between the memory and the distribution."""

    def _latent(self, obs: Any) -> th.Tensor:
        return 10.0 * super()._latent(obs)


def test_a_subclass_acts_as_it_learns() -> None:
    settings = {**SMALL, "n_steps": 16, "n_epochs": 1, "batch_size": None}
    model = GRPO(Sharp, corridors(), **settings).learn(128)
    assert model.logger.name_to_value["train/ratio_max"] == pytest.approx(1.0, abs=1e-4)
    obs = corridors().reset()
    latent = model.policy._latent(th.as_tensor(obs))
    expected = model.policy._get_action_dist_from_latent(latent).get_actions(deterministic=True)
    assert (model.predict(obs, deterministic=True)[0] == expected.numpy()).all()
