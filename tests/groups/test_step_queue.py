"""Updates that take a number of steps of each copy, and do not wait for the end of episodes."""

import copy
import functools
import warnings
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize
from toy_envs import TINY, RecordingEnv, SpacesEnv, ToyEnv, observations_of

from sb3_grpo import DAPO, GRPO, make_group_env
from sb3_grpo.common.values import ValueRegression
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


@pytest.mark.parametrize(("n_envs", "n_steps"), [(1, 2048), (16, 128), (4096, 1)])
def test_an_update_has_2048_steps_by_default(n_envs: int, n_steps: int) -> None:
    model = make_model(DummyVecEnv([ToyEnv] * n_envs))
    assert (model.n_steps, model.n_groups) == (n_steps, None)


@pytest.mark.parametrize(("so_far", "n_steps"), [(0, 128), (100_000, 128), (200_000, 250), (10**7, 512)])
@pytest.mark.parametrize("loaded", [False, True])
def test_an_update_grows_by_default(so_far: int, n_steps: int, loaded: bool, tmp_path: Path) -> None:
    seen = Batches()
    model = make_model(n_envs=16, n_epochs=1, batch_size=2048)
    if loaded:
        model.save(tmp_path / "model")
        model = GRPO.load(tmp_path / "model", env=model.get_env())
    model.num_timesteps = so_far
    model.learn(1, callback=seen, reset_num_timesteps=False)
    assert [len(batch.rows) for batch in seen.batches] == [16 * n_steps]
    assert model.num_timesteps == so_far + 16 * n_steps and model.n_steps == 128


@pytest.mark.parametrize("given", [127, 128])
def test_an_update_of_n_steps_that_load_was_given_stays_as_it_is(given: int, tmp_path: Path) -> None:
    seen = Batches()
    make_model(n_envs=16, n_epochs=1, batch_size=2048).save(tmp_path / "model")
    model = GRPO.load(tmp_path / "model", env=make_group_env(ToyEnv, 16), n_steps=given)
    model.num_timesteps = 10**6
    model.learn(1, callback=seen, reset_num_timesteps=False)
    assert [len(batch.rows) for batch in seen.batches] == [16 * given]


def test_an_update_that_was_disturbed_is_as_large_as_others() -> None:
    class Disturbs(Batches):
        def _on_step(self) -> bool:
            if self.n_calls == 5:
                self.training_env.reset()
            return True

    seen = Disturbs()
    model = make_model(n_envs=16, n_epochs=1, batch_size=2048)
    model.num_timesteps = 10**6
    with pytest.warns(UserWarning, match="reset in the middle of a rollout"):
        model.learn(16 * 512, callback=seen, reset_num_timesteps=False)
    assert [len(batch.rows) for batch in seen.batches] == [16 * 512]


@pytest.mark.parametrize("given", [127, 128])
def test_an_update_of_n_steps_that_were_given_stays_as_it_is(given: int) -> None:
    seen = Batches()
    model = make_model(n_envs=16, n_steps=given, n_epochs=1, batch_size=2048)
    model.num_timesteps = 10**6
    model.learn(1, callback=seen, reset_num_timesteps=False)
    assert [len(batch.rows) for batch in seen.batches] == [16 * given]


def test_updates_take_n_steps_of_each_copy() -> None:
    seen = Batches()
    model = make_model(env_kwargs={"length": 50}, n_steps=16).learn(200, callback=seen)
    assert [len(batch.rows) for batch in seen.batches] == [64, 64, 64, 64] and model.num_timesteps == 256


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


@pytest.mark.parametrize("vec_env_cls", [DummyVecEnv, SubprocVecEnv])
@pytest.mark.parametrize("unrelated_starts", [False, True])
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
    assert batch.going_on.tolist() == ([0, 1, 2, 3] if time_limit else [2, 3])
    assert batch.next_observations[:, 1].tolist() == ([10, 10, 6, 6] if time_limit else [6, 6])


class ReusingEnv(ToyEnv):
    """Writes each observation into the same array."""

    def observe(self) -> Any:
        if not hasattr(self, "seen"):
            self.seen = np.zeros(2)
        self.seen[:] = super().observe()
        return self.seen


def test_what_follows_the_last_step_of_an_environment_that_reuses_its_observation() -> None:
    """Its reset has written the first observation of the next episode there."""
    seen = Batches()
    make_model(ReusingEnv, n_envs=2, env_kwargs={"length": 10, "time_limit": True}, group_size=2, n_steps=16).learn(
        32, callback=seen
    )
    (batch,) = seen.batches
    assert batch.next_observations[:, 1].tolist() == [10, 10, 6, 6]


def test_members_that_have_ended_before_are_not_in_an_update() -> None:
    """One copy plays the two members of a group one after the other. Of the first group, the second update has four steps."""
    seen = Batches()
    settings: dict[str, Any] = {"n_envs": 1, "group_size": 2, "n_steps": 16, "learning_rate": 0.1}
    model = make_model(env_kwargs={"length": 10, "time_limit": True, "reward": -1.0}, **settings)
    before = th.nn.utils.parameters_to_vector(model.policy.parameters()).clone()
    with pytest.warns(UserWarning, match="No update at 16 steps"):
        model.learn(32, callback=seen)
    assert seen.batches[1].lengths.tolist() == [[0, 4], [10, 2]]
    assert seen.batches[1].going_on.tolist() == [1, 2, 3]
    assert seen.batches[1].next_observations[:, 1].tolist() == [10, 10, 2]
    # None has come to an end: a time limit is none
    assert th.equal(th.nn.utils.parameters_to_vector(model.policy.parameters()), before)


def test_what_is_known_of_each_return(monkeypatch: pytest.MonkeyPatch) -> None:
    fits: list[tuple[Any, ...]] = []
    original = ValueRegression.fit

    def noted(self: ValueRegression, *args: Any) -> th.Tensor:
        fits.append(args)
        return original(self, *args)

    monkeypatch.setattr(ValueRegression, "fit", noted)
    seen = Batches()
    make_model(env_kwargs={"length": 10}, n_envs=2, group_size=2, n_steps=16, gamma=0.5).learn(32, callback=seen)
    ((_, returns, (next_states, ends, discounts), _),) = fits
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


class Endless(gym.Env):
    """Every step pays 1 for ever; the right action pays more."""

    observation_space = spaces.Box(-1.0, 1.0, (1,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 1.0 + float(action == 1), False, False, {}


def test_episodes_need_not_end() -> None:
    model = make_model(Endless, n_steps=128, learning_rate=0.03, gamma=0.9).learn(5_000)
    assert all(model.predict(np.zeros(1, np.float32))[0] == 1 for _ in range(5))
    # The value of going on is in it: 2 / (1 - 0.9), though no update has seen more than 128 steps
    states = model.policy.state_features(th.zeros(1, 1))
    assert model.value_regression.predict(states).item() == pytest.approx(20.0, rel=0.1)


def test_only_whole_groups_need_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "MAX_EPISODE_LENGTH", 50)
    assert make_model(Endless, n_steps=64).learn(4 * 64).num_timesteps == 4 * 64
    with pytest.raises(ValueError, match="An episode has not ended after 50 steps"):
        make_model(Endless, n_groups=1).learn(4 * 64)


def test_steps_of_an_endless_episode_are_counted_over_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "MAX_EPISODE_LENGTH", 50)
    envs = [ToyEnv(length=length) for length in (3, 3, 10**6)]
    model = make_model(DummyVecEnv([functools.partial(lambda env: env, env) for env in envs]), n_groups=1, group_size=2)
    with pytest.raises(ValueError, match="An episode has not ended after 50 steps"):
        model.learn(1000)
    assert model._n_updates > 0 and envs[2].t == 51, "it began before the first update"


def test_episodes_outside_of_groups_need_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "MAX_EPISODE_LENGTH", 50)
    model = make_model(Endless, n_steps=60, n_envs=2).learn(2 * 60)
    groups = model.collector
    groups.settings = groups.settings._replace(n_steps=None)
    step = np.zeros((2, 1), np.float32), np.zeros(2), np.zeros(2, bool)
    with pytest.raises(ValueError, match="An episode has not ended"):
        groups.add_step(*step)
    groups.in_groups[:] = False
    groups.add_step(*step)


def test_values_follow_episodes_over_updates() -> None:
    """Each update sees 8 of the 40 steps of an episode; only the last step pays."""

    class Late(ToyEnv):
        observation_space = spaces.Box(-1.0, 1.0, (2,), np.float64)

        def observe(self) -> Any:
            return np.array([np.sin(0.1 * self.t), np.cos(0.1 * self.t)])

        def step(self, action: Any) -> Any:
            observation, _, ended, *rest = super().step(action)
            return observation, 100.0 * ended + float(action), ended, *rest

    model = make_model(Late, env_kwargs={"length": 40}, n_envs=8, n_steps=8, gamma=0.95, learning_rate=0.0)
    model.learn(8 * 8 * 100)
    times = th.tensor([0.0, 10.0, 20.0, 30.0, 39.0])
    features = model.policy.state_features(th.stack([th.sin(0.1 * times), th.cos(0.1 * times)], dim=1))
    n_left = 39 - times.double()
    chosen = 0.5 * (1 - 0.95 ** (n_left + 1)) / 0.05  # the policy is about even
    th.testing.assert_close(model.value_regression.predict(features), 100 * 0.95**n_left + chosen, atol=12.0, rtol=0)


def test_values_know_nothing_of_the_returns_that_they_are_compared_with(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("fit", "predict"):
        original = getattr(ValueRegression, name)

        def noted(*args: Any, original: Any = original, name: str = name) -> Any:
            calls.append(name)
            return original(*args)

        monkeypatch.setattr(ValueRegression, name, noted)
    make_model(env_kwargs={"length": 40}, n_steps=16).learn(3 * 64)
    # The first update has no others, and makes up for them with two more fits. Values of the steps and of where episodes go
    # on, which the fit takes, too
    assert calls == ["fit"] + ["predict"] * 4 + ["predict", "predict", "fit", "predict"] * 2


@pytest.mark.parametrize("reward", [0.0, -1.0])
def test_nothing_is_learned_where_all_comes_to_the_same(reward: float) -> None:
    model = make_model(env_kwargs={"length": 100, "reward": reward}, n_steps=16, learning_rate=0.1)
    before = th.nn.utils.parameters_to_vector(model.policy.parameters()).clone()
    with pytest.warns(UserWarning, match="No update at 64 steps: no step differed from the others of its group"):
        model.learn(128)
    assert th.equal(th.nn.utils.parameters_to_vector(model.policy.parameters()), before)


@pytest.mark.parametrize("kwargs", [{"ent_coef": 0.1}, {"kl_coef": 0.1}])
def test_entropy_bonus_and_reference_hold_where_all_comes_to_the_same(kwargs: dict[str, Any]) -> None:
    model = make_model(env_kwargs={"length": 100, "reward": 0.0}, n_steps=16, **kwargs).learn(128)
    assert model._n_updates == 2 * model.n_epochs


def test_zeros_are_learned_from_once_there_was_a_reward() -> None:
    """After a reward, values expect another one: an update of zeros is learned from."""

    class Once(ToyEnv):
        paid: ClassVar = False

        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(action)
            return observation, float(self.paid and action), *rest

    model = make_model(Once, env_kwargs={"length": 4}, n_steps=16)
    counts = []
    for Once.paid in (False, True, False):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            model.learn(64, reset_num_timesteps=False)
        counts.append(model._n_updates)
    assert counts == [0, 2, 4]


def test_how_long_an_episode_lasts_can_be_all_there_is_to_learn() -> None:
    """-1 for each step: where episodes have ended within the update, they do differ."""
    model = make_model(env_kwargs={"length": None, "reward": -1.0}, n_steps=64, learning_rate=0.03, n_epochs=10).learn(6_000)
    # Action 0 ends the episode sooner
    starts = np.column_stack([np.linspace(0, 1, 20), np.zeros(20)])
    assert (model.predict(starts, deterministic=True)[0] == 0).all()


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


def test_an_update_without_a_size_is_an_error() -> None:
    """As neither is chosen once the model is made."""
    model = make_model(n_steps=8)
    model.n_steps = None
    with pytest.raises(ValueError, match=r"n_steps and n_groups are both None: set one of them, n_groups=4 for example"):
        model.learn(32)
    model.n_groups = 2
    assert model.learn(32).num_timesteps >= 32


def test_an_update_of_one_step_is_an_error() -> None:
    """It would be compared with itself, and nothing ever learned."""
    with pytest.raises(ValueError, match=r"n_steps \* n_envs must be greater than 1, got n_steps=1 and n_envs=1"):
        make_model(n_envs=1, n_steps=1)
    make_model(n_envs=2, n_steps=1)


def test_a_reward_that_is_not_finite_is_named_before_the_episode_ends() -> None:
    class Bad(ToyEnv):
        def step(self, action: Any) -> Any:
            observation, reward, *rest = super().step(action)
            return observation, np.nan if self.t == 6 else reward, *rest

    with pytest.raises(ValueError, match=r"Environment copy 0 .*, step 5 of its episode: the reward is nan"):
        make_model(Bad, env_kwargs={"length": 1000}, n_steps=16).learn(64)
    # Its place is that in the episode, of which earlier updates have had the beginning
    with pytest.raises(ValueError, match=r"Environment copy 0 .*, step 5 of its episode: the reward is nan"):
        make_model(Bad, env_kwargs={"length": 1000}, n_steps=2).learn(64)


DICT = spaces.Dict({"image": spaces.Box(0, 255, (3, 36, 36), np.uint8), "number": spaces.Box(-1.0, 1.0, (2,))})


@pytest.mark.parametrize(
    ("policy", "space"),
    [
        ("MlpPolicy", spaces.Discrete(5)),
        ("MlpPolicy", spaces.MultiBinary(3)),
        ("CnnPolicy", spaces.Box(0, 255, (3, 36, 36), np.uint8)),
        ("MultiInputPolicy", DICT),
    ],
)
@pytest.mark.parametrize("time_limit", [False, True])
def test_observations(policy: str, space: spaces.Space, time_limit: bool) -> None:
    env = functools.partial(SpacesEnv, space, spaces.Discrete(2), length=10, time_limit=time_limit)
    model = GRPO(policy, make_group_env(env, 4), n_steps=16, n_epochs=1, device="cpu", seed=0)
    model.learn(192)
    assert model.num_timesteps == 192 and np.isfinite(model.logger.name_to_value["train/regression_r2"])


def test_copies_in_processes_and_their_normalisation() -> None:
    env = make_group_env("CartPole-v1", 4, vec_env_cls=SubprocVecEnv)
    model = make_model(VecNormalize(env), n_steps=64).learn(1024)
    assert model.num_timesteps == 1024
    env.close()


@pytest.mark.parametrize("n_stop", [40, 64])
def test_a_rollout_that_a_callback_stops_is_dropped(n_stop: int) -> None:
    """As in PPO. The episodes go on."""
    model = make_model(env_kwargs={"length": 40}, n_steps=16)
    seen = Batches()
    model.learn(128, callback=[StopAt(n_stop), seen])
    assert model.num_timesteps == n_stop
    model.learn(128, callback=seen, reset_num_timesteps=False)
    assert [len(batch.rows) for batch in seen.batches] == [64, 64]
    assert seen.batches[0].elapsed.unique().tolist() == [n_stop // 4]


def test_rollouts_that_are_stopped_again_and_again_leave_no_groups_behind() -> None:
    model = make_model(env_kwargs={"length": 3}, n_steps=16)
    for n_stop in range(40, 840, 40):
        model.learn(64, callback=StopAt(n_stop), reset_num_timesteps=False)
    assert model.num_timesteps == 800
    assert len(model.collector.queue.groups) < 10


class StopAt(BaseCallback):
    """
    :param n_steps: After how many to stop
    """

    def __init__(self, n_steps: int):
        super().__init__()
        self.n_steps = n_steps

    def _on_step(self) -> bool:
        return self.num_timesteps < self.n_steps


def test_unrelated_starts() -> None:
    seen = Batches()
    make_model(env_kwargs={"length": 40}, n_steps=16, unrelated_starts=True).learn(192, callback=seen)
    assert [len(batch.rows) for batch in seen.batches] == [64] * 3


def test_a_loaded_model_goes_on(tmp_path: Path) -> None:
    model = make_model(env_kwargs={"length": 40}, n_steps=16).learn(192)
    model.save(tmp_path / "model")
    env = make_group_env(functools.partial(ToyEnv, length=40), 4)
    loaded = GRPO.load(tmp_path / "model", env=env, device="cpu")
    assert (loaded.n_steps, loaded.n_groups) == (16, None)
    assert loaded.learn(64, reset_num_timesteps=False).num_timesteps == 256
