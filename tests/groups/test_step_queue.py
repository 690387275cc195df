"""Updates that take a number of steps of each copy, and do not wait for the end of episodes."""

import copy
import functools
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv
from toy_envs import TINY, RecordingEnv, ToyEnv, observations_of, parameters_of

from sb3_grpo import DAPO, GRPO, make_group_env
from sb3_grpo.common.values import RunningRegression
from sb3_grpo.envs import VerifierTextVecEnv
from sb3_grpo.groups import collector


class Batches(BaseCallback):
    """Looks at each batch before the update."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Any] = []
        self.recomputed: list[th.Tensor] = []
        self.logged: list[dict[str, Any]] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        batch = self.model.batch  # type: ignore[attr-defined]
        self.batches.append(copy.deepcopy(batch))  # the next rollout writes over it
        self.logged.append(dict(self.logger.name_to_value))
        with th.no_grad():
            distribution = self.model.policy.get_distribution(observations_of(batch))
            self.recomputed.append(distribution.log_prob(batch.actions[batch.rows]))


def make_model(env: Any = ToyEnv, algo: Any = GRPO, n_envs: int = 4, env_kwargs: Any = None, **kwargs: Any) -> Any:
    if isinstance(env, type):
        env = make_group_env(functools.partial(env, **(env_kwargs or {})), n_envs)
    return algo("MlpPolicy", env, policy_kwargs=TINY, device="cpu", seed=0, **{"n_epochs": 2, "batch_size": 64, **kwargs})


@pytest.mark.parametrize(("n_envs", "n_steps"), [(1, 2048), (16, 128), (128, 16), (4096, 16)])
def test_an_update_has_2048_steps_by_default_and_at_least_16_of_each_copy(n_envs: int, n_steps: int) -> None:
    model = make_model(DummyVecEnv([ToyEnv] * n_envs))
    assert (model.n_steps, model.n_groups) == (n_steps, None)


@pytest.mark.parametrize(
    ("so_far", "given", "n_steps"),
    [
        *((so_far, {}, n_steps) for so_far, n_steps in ((0, 128), (100_000, 128), (200_000, 250), (10**7, 512))),
        *((10**6, {"n_steps": n_steps}, n_steps) for n_steps in (127, 128)),
    ],
)
@pytest.mark.parametrize("loaded", [False, True])
def test_an_update_grows_by_default(so_far: int, given: dict[str, int], n_steps: int, loaded: bool, tmp_path: Path) -> None:
    seen = Batches()
    model = make_model(n_envs=16, n_epochs=1, batch_size=2048, **({} if loaded else given))
    if loaded:
        model.save(tmp_path / "model")
        model = GRPO.load(tmp_path / "model", env=model.get_env(), **given)
    model.num_timesteps = so_far
    model.learn(1, callback=seen, reset_num_timesteps=False)
    assert [len(batch.rows) for batch in seen.batches] == [16 * n_steps]
    assert model.num_timesteps == so_far + 16 * n_steps and (given or model.n_steps == 128)


def test_an_update_of_many_copies_does_not_grow_beyond_the_largest() -> None:
    seen = Batches()
    model = make_model(DummyVecEnv([ToyEnv] * 1024), unrelated_starts=True, n_epochs=1, batch_size=2048)
    model.num_timesteps = 10**7
    model.learn(1, callback=seen, reset_num_timesteps=False)
    assert [len(batch.rows) for batch in seen.batches] == [1024 * 16]


def test_each_step_is_learned_from_once_and_by_the_policy_that_chose_it() -> None:
    env = make_group_env(functools.partial(RecordingEnv, length=None), 3)
    for number, each in enumerate(env.envs):
        each.unwrapped.number = number
    seen = Batches()
    make_model(env, n_steps=7, learning_rate=0.1).learn(210, callback=seen)
    steps = th.cat([observations_of(batch)[:, 1] for batch in seen.batches])
    later = steps[steps != 0.0]
    assert len(steps) == 210 and len(later.unique()) == len(later) > 100
    for batch, recomputed in zip(seen.batches, seen.recomputed, strict=True):
        th.testing.assert_close(batch.old_log_prob[batch.rows], recomputed)
    # And their rewards are those that they got
    got = {
        float(observation[1]): reward
        for each in env.envs
        for piece in each.unwrapped.history
        for observation, _, reward in piece
    }
    for batch in seen.batches:
        for unique, reward in zip(observations_of(batch)[:, 1].tolist(), batch.flatten(batch.rewards).tolist(), strict=True):
            assert unique == 0.0 or got[unique] == reward


def test_episodes_go_on_in_the_next_update() -> None:
    seen = Batches()
    make_model(env_kwargs={"length": 40}, n_steps=16).learn(64 * 5, callback=seen)
    for n_update, batch in enumerate(seen.batches):
        # The second entry of the observation is the time
        place = batch.time + batch.elapsed.flatten()[batch.episode]
        assert observations_of(batch)[:, 1].tolist() == place.tolist()
        assert (batch.lengths.sum(1) > 0).all() and int(batch.lengths.max()) <= 16
        first = (batch.time == 0) & (place == 0)
        # From the second episodes on copies begin at different times: test_staggering.py
        assert first.any().item() == (n_update != 1)
    # Members of a group share the start, in whichever update they are met
    starts = observations_of(seen.batches[1])[:, 0]
    for group in range(len(seen.batches[1].lengths)):
        assert len(starts[seen.batches[1].episode // 4 == group].unique()) == 1


@pytest.mark.parametrize(("vec_env_cls", "unrelated_starts"), [(DummyVecEnv, False), (SubprocVecEnv, True)])
def test_episodes_go_on_in_the_next_call_of_learn(unrelated_starts: bool, vec_env_cls: Any) -> None:
    env = make_group_env(functools.partial(ToyEnv, length=40), 2, vec_env_cls=vec_env_cls)
    seen = Batches()
    model = make_model(env, n_steps=16, unrelated_starts=unrelated_starts)
    for _ in range(3):
        model.learn(32, callback=seen, reset_num_timesteps=False)
    places = [observations_of(batch)[:, 1] for batch in seen.batches]
    assert [(int(each.min()), int(each.max())) for each in places] == [(0, 15), (16, 31), (0, 39)]
    # Begun anew where others have reset the environment
    env.reset()
    model.learn(32, callback=seen, reset_num_timesteps=False)
    assert observations_of(seen.batches[-1])[:, 1].tolist() == [*range(16)] * 2
    env.close()


@pytest.mark.parametrize("time_limit", [False, True])
def test_what_follows_the_last_step(time_limit: bool) -> None:
    """The next observation where an episode goes on or a time limit has cut it off, and none where it has ended."""
    seen = Batches()
    make_model(env_kwargs={"length": 10, "time_limit": time_limit}, n_envs=2, group_size=2, n_steps=16).learn(
        32, callback=seen
    )
    (batch,) = seen.batches
    # Two episodes of each copy: ten steps to the end, and six
    assert batch.lengths.flatten().tolist() == [10, 10, 6, 6]
    assert batch.unfinished.tolist() == ([0, 1, 2, 3] if time_limit else [2, 3])
    assert batch.next_observations[:, 1].tolist() == ([10, 10, 6, 6] if time_limit else [6, 6])


def test_members_that_have_ended_before_are_not_in_an_update() -> None:
    """One copy plays the two members of a group one after the other. Of the first group, the second update has four steps."""
    seen = Batches()
    settings: dict[str, Any] = {"n_envs": 1, "group_size": 2, "n_steps": 16, "learning_rate": 0.1}
    model = make_model(env_kwargs={"length": 10, "time_limit": True, "reward": -1.0}, **settings)
    with pytest.warns(UserWarning, match="No update at 16 steps"):
        model.learn(32, callback=seen)
    assert seen.batches[1].lengths.tolist() == [[0, 4], [10, 2]]
    assert seen.batches[1].unfinished.tolist() == [1, 2, 3]
    assert seen.batches[1].next_observations[:, 1].tolist() == [10, 10, 2]
    # None has come to an end: a time limit is none
    assert model._n_updates == 0


def test_what_is_known_of_each_return(monkeypatch: pytest.MonkeyPatch) -> None:
    fits: list[tuple[Any, ...]] = []
    original = RunningRegression.fit

    def noted(self: RunningRegression, *args: Any) -> th.Tensor:
        fits.append(args)
        return original(self, *args)

    monkeypatch.setattr(RunningRegression, "fit", noted)
    seen = Batches()
    make_model(env_kwargs={"length": 10}, n_envs=2, group_size=2, n_steps=16, gamma=0.5).learn(32, callback=seen)
    ((_, returns, (next_states, ends, discounts)),) = fits
    # Two episodes that have ended after ten steps, and two that go on after six
    assert next_states.numbers[:, 1].tolist() == [6, 6]
    assert ends.tolist() == [-1] * 20 + [0] * 6 + [1] * 6
    assert discounts[20:].tolist() == [0.5**n_left for n_left in (6, 5, 4, 3, 2, 1)] * 2
    rewards = seen.batches[0].rewards.flatten(0, 1)
    expected = [
        sum(0.5**k * reward for k, reward in enumerate(rewards[i, t:length].tolist()))
        for i, length in enumerate((10, 10, 6, 6))
        for t in range(length)
    ]
    assert returns.tolist() == pytest.approx(expected)


class Endless(ToyEnv):
    """The right action pays 1 for ever."""

    def __init__(self) -> None:
        super().__init__(length=10**9)

    def observe(self) -> Any:
        return np.zeros(2)


def test_episodes_need_not_end() -> None:
    model = make_model(Endless, n_steps=128, learning_rate=0.03, gamma=0.9).learn(5_000)
    assert all(model.predict(np.zeros(2))[0] == 1 for _ in range(5))
    # The value of going on is in it: 1 / (1 - 0.9), though no update has seen more than 128 steps
    states = model.policy.state_features(th.zeros(1, 2))
    assert model.value_regression.predict(states).item() == pytest.approx(10.0, rel=0.1)


def test_only_whole_groups_need_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "MAX_EPISODE_LENGTH", 50)
    assert make_model(Endless, n_steps=64).learn(4 * 64).num_timesteps == 4 * 64
    with pytest.raises(ValueError, match="An episode has not ended after 50 steps"):
        make_model(Endless, n_groups=1).learn(4 * 64)


@pytest.mark.parametrize("reward", [0.0, -1.0])
def test_nothing_is_learned_where_all_comes_to_the_same(reward: float) -> None:
    model = make_model(env_kwargs={"length": 100, "reward": reward}, n_steps=16, learning_rate=0.1)
    with th.no_grad():
        model.policy.action_net.bias[0] = 0.1  # as after a warm start
    before = parameters_of(model)
    said = f"No update at 64 steps: no step differed from the others of its group: all rewards are {reward:g}, and no episode"
    with pytest.warns(UserWarning, match=f"{said} has ended in these 16 steps of each copy. It takes a larger n_steps"):
        model.learn(128)
    assert th.equal(parameters_of(model), before) and model._n_updates == 0
    with pytest.warns(UserWarning, match="all rewards are 0, and no episode ended otherwise .* solved if that is the best"):
        make_model(env_kwargs={"length": 4, "reward": 0.0}, n_steps=16).learn(64)


class Corridor(gym.Env):
    """The goal is 40 steps to the right, and each step costs the same. A random walk is there in one of 600 episodes."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.x = self.t = 0
        return self.observe(), {}

    def observe(self) -> Any:
        return np.array([1.0, self.x / 40], np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.x += 1 if action == 1 else -1
        return self.observe(), -1.0, self.x == 40, self.t == 160, {}


@pytest.mark.slow
def test_a_goal_that_a_random_walk_does_not_reach_is_found() -> None:
    model = make_model(Corridor, n_steps=128, n_epochs=10, learning_rate=3e-3).learn(15_000)
    assert model.ep_info_buffer[-1]["l"] < 80


@pytest.mark.parametrize("kwargs", [{"ent_coef": 0.1}, {"kl_coef": 0.1}])
def test_entropy_bonus_and_reference_hold_where_all_comes_to_the_same(kwargs: dict[str, Any]) -> None:
    model = make_model(env_kwargs={"length": 100, "reward": 0.0}, n_steps=16, **kwargs).learn(128)
    assert model._n_updates == 2 * model.n_epochs


@pytest.mark.parametrize(("rounds", "n_steps"), [(1, 16), (3, 48)])
def test_steps_of_dead_groups_do_not_count_for_dynamic_sampling(rounds: int, n_steps: int) -> None:
    """Each episode has four steps and the same outcome: the rollout is as long as it may be, and nothing is thrown away."""
    seen = Batches()
    model = make_model(algo=DAPO, env_kwargs={"reward": 1.0}, n_steps=16, max_sampling_rounds=rounds)
    model.learn(1, callback=seen)
    assert len(seen.batches[0].rows) == n_steps * 4 == model.num_timesteps


def test_steps_of_an_earlier_update_are_not_counted_again() -> None:
    """Of the 24 steps of the dead episodes, 16 are in the first update."""
    seen = Batches()
    make_model(algo=DAPO, env_kwargs={"length": 24, "reward": 1.0}, n_steps=16).learn(65, callback=seen)
    # The second goes on for as many as the 4 * 8 that are dead
    assert [len(batch.rows) for batch in seen.batches] == [64, 64 + 32]
    assert [logged["group/sampling_rounds"] for logged in seen.logged] == [1, 2]
    # Of groups that have not ended nothing else is said
    assert [logged.get("group/dead_fraction") for logged in seen.logged] == [None, 1.0]


def test_dynamic_sampling_ends_with_enough_steps_of_live_groups() -> None:
    seen = Batches()
    make_model(algo=DAPO, env_kwargs={"length": 1}, n_steps=16, max_sampling_rounds=100).learn(1, callback=seen)
    batch = seen.batches[0]
    outcomes = batch.rewards.sum(-1)
    complete = (batch.lengths == 1).all(1)
    dead = complete & (outcomes == outcomes[:, :1]).all(1)
    n_live = int(batch.lengths[~dead].sum())
    assert dead.any() and 64 <= n_live < 64 + 4 and len(batch.rows) == int(batch.lengths.sum())


@pytest.mark.parametrize(
    "kwargs",
    [
        {"advantage": "outcome"},
        {"advantage": lambda rewards, mask, **others: rewards},
        {"loss_average": "episode"},
        {"ratio_level": "episode"},
        {"overlong_filter": True},
        {"loss_average": 10.0},
        {"overlong_range": (5, 10)},
    ],
)
def test_whole_groups_where_whole_episodes_are_judged(kwargs: dict[str, Any]) -> None:
    model = make_model(**kwargs)
    assert (model.n_steps, model.n_groups) == (None, 4)
    name = next(iter(kwargs))
    with pytest.raises(ValueError, match=rf"n_steps=8 takes episodes that have not ended, and {name}=.* n_groups=4"):
        make_model(n_steps=8, **kwargs)


def test_n_groups_means_whole_groups() -> None:
    model = make_model(n_groups=3)
    assert (model.n_steps, model.n_groups) == (None, 3)
    with pytest.raises(ValueError, match=r"Give n_steps=8 or n_groups=3, and not both"):
        make_model(n_groups=3, n_steps=8)
    for kwargs in ({}, {"n_groups": 2}):
        with pytest.raises(ValueError, match="n_steps must be at least 1, or None for whole groups, got 0"):
            make_model(n_steps=0, **kwargs)
    assert GRPO("TokenPolicy", VerifierTextVecEnv(2)).n_groups == 4


def test_an_update_of_one_step_is_an_error() -> None:
    """It would be compared with itself, and nothing ever learned."""
    with pytest.raises(ValueError, match=r"n_steps \* n_envs must be greater than 1, got n_steps=1 and n_envs=1"):
        make_model(n_envs=1, n_steps=1)
    make_model(n_envs=2, n_steps=1)


@pytest.mark.parametrize("n_stop", [40, 64])
def test_a_rollout_that_a_callback_stops_is_dropped(n_stop: int) -> None:
    """As in PPO. The episodes go on."""
    model = make_model(env_kwargs={"length": 40}, n_steps=16)
    seen = Batches()
    model.learn(128, callback=[ConvertCallback(lambda *_: model.num_timesteps < n_stop), seen])
    assert model.num_timesteps == n_stop
    model.learn(128, callback=seen, reset_num_timesteps=False)
    assert [len(batch.rows) for batch in seen.batches] == [64, 64]
    assert seen.batches[0].elapsed.unique().tolist() == [n_stop // 4]
