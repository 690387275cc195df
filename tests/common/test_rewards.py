"""What becomes of the rewards: soft overlong punishment, VecNormalize, sums."""

import functools
import math
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.vec_env import VecNormalize
from toy_envs import TINY, TINY_TEXT, ToyEnv, judged, observations_of

from sb3_grpo.common.batch import Minibatch
from sb3_grpo.common.rewards import kl_penalised_rewards, soft_overlong_penalty
from sb3_grpo.envs import VerifierTextVecEnv
from sb3_grpo.grpo import GRPO
from sb3_grpo.starts.group_env import make_group_env

SMALL: dict[str, Any] = {"group_size": 4, "n_groups": 3, "n_epochs": 1, "policy_kwargs": TINY, "device": "cpu", "seed": 0}


def test_kl_in_the_reward_by_hand():
    # beta = 0.5: 1 - 0.5 (log 1/2 - log 1/4) = 1 - 0.5 log 2, and 0 - 0.5 (log 1/4 - log 1/2) = 0.5 log 2
    rewards, log_prob, ref = th.tensor([1.0, 0.0]), th.tensor([0.5, 0.25]).log(), th.tensor([0.25, 0.5]).log()
    expected = [1.0 - 0.5 * math.log(2), 0.5 * math.log(2)]
    assert kl_penalised_rewards(rewards, log_prob, ref, 0.5).tolist() == pytest.approx(expected)


class Seen(GRPO):
    """Keeps the rewards from which advantages are made."""

    def _judge(self, batch: Any, values: Any = None) -> Any:
        self.seen = batch
        return super()._judge(batch, values)


@pytest.mark.parametrize("text", [False, True])
def test_kl_in_the_reward_of_each_step(text: bool) -> None:
    env: Any = (
        VerifierTextVecEnv(4, seed=0) if text else make_group_env(functools.partial(ToyEnv, length=None, reward=0.25), 3)
    )
    settings = {**SMALL, "policy_kwargs": TINY_TEXT if text else TINY, "batch_size": 7, "n_epochs": 2, "advantage": "outcome"}
    model: Any = Seen(
        "TokenPolicy" if text else "MlpPolicy", env, kl_coef=0.5, kl_estimator="k1_in_reward", gamma=1.0, **settings
    )
    model.learn(1)
    assert model.logger.name_to_value["train/kl_ref"] == pytest.approx(0.0, abs=1e-6), "the reference is the policy"
    with th.no_grad():
        # The update may have had nothing to learn from
        for each in model.policy.parameters():
            each += 0.01 * th.randn_like(each)
    model.learn(1, reset_num_timesteps=False)
    batch = model.seen
    with th.no_grad():
        whole = Minibatch(th.arange(len(batch.rows)), np.arange(batch.lengths.numel()), 1)
        reference = model.ref_policy.get_distribution(batch.observations_at(whole)).log_prob(batch.actions[batch.rows])
    log_ratio = batch.old_log_prob[batch.rows] - reference
    assert log_ratio.abs().max() > 1e-4
    raw = batch.flatten(batch.rewards) + 0.5 * log_ratio
    rewards = {0.0, 1.0} if text else {0.25}
    assert {round(reward, 4) for reward in raw.tolist()} <= rewards
    assert model.logger.name_to_value["train/kl_ref"] == pytest.approx(log_ratio.mean().item(), abs=1e-6)


@pytest.mark.parametrize(
    ("lengths", "low", "high", "expected"),
    [
        # Free up to 16, falling over 4 steps, full from 20 on
        ([1, 15, 16, 17, 18, 19, 20, 21], 16, 20, [0.0, 0.0, 0.0, -0.25, -0.5, -0.75, -1.0, -1.0]),
        # Expected maximum 16384 tokens, cache 4096, generation stopped at 20480
        ([16384, 18432, 20480, 30000], 16384, 20480, [0.0, -0.5, -1.0, -1.0]),
        ([0, 5, 10], 0, 10, [0.0, -0.5, -1.0]),
    ],
)
def test_penalty_with_the_numbers_of_the_paper(lengths, low, high, expected):
    assert soft_overlong_penalty(th.tensor(lengths), low, high).tolist() == expected


@pytest.mark.parametrize(("low", "high"), [(20, 20), (21, 20), (-1, 20)])
def test_impossible_range_is_refused(low, high):
    with pytest.raises(ValueError, match="0 <= low < high"):
        soft_overlong_penalty(th.tensor([1]), low, high)


def normalized_model(env: Any, **kwargs: Any) -> tuple[GRPO, VecNormalize]:
    """A model that has collected a batch while the scale of the rewards was changing."""
    vec_env = VecNormalize(make_group_env(env, 3), norm_obs=False, clip_reward=1e6)
    scales = []

    def look(*_: Any) -> bool:
        scales.append(float(vec_env.ret_rms.var))
        return True

    model = GRPO("MlpPolicy", vec_env, **SMALL, **kwargs).learn(1, callback=look)
    assert len(set(scales)) == len(scales) > 10
    return model, vec_env


@pytest.mark.parametrize(("advantage", "scale"), [("outcome", "group"), ("process", "batch"), ("return_to_go", "none")])
def test_equal_members_stay_equal_under_vec_normalize(advantage: str, scale: str) -> None:
    env = functools.partial(ToyEnv, length=4, reward=0.3)
    model, vec_env = normalized_model(env, advantage=advantage, advantage_scale=scale)
    assert model.batch is not None
    expected = 0.3 / (vec_env.ret_rms.var + vec_env.epsilon) ** 0.5
    of_update = judged(model)
    th.testing.assert_close(of_update.batch.rewards, th.full((3, 4, 4), expected, dtype=th.float64))
    assert not of_update.advantages.any()


class GrowingReward(ToyEnv):
    """The reward can be told from the observation: the start, and the number of steps."""

    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, float(observation.sum()), *rest


def test_one_scale_of_rewards_per_batch() -> None:
    model, vec_env = normalized_model(functools.partial(GrowingReward, length=None))
    batch = judged(model).batch
    raw = observations_of(batch).sum(1) + 1
    factor = 1 / (vec_env.ret_rms.var + vec_env.epsilon) ** 0.5
    th.testing.assert_close(batch.flatten(batch.rewards), factor * raw.double())
