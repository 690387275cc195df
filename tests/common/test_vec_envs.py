import functools
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
)
from toy_envs import TINY, TINY_TEXT, NoisyEnv, SpacesEnv, ToyEnv, judged, observations_of

from sb3_grpo.checkpoint.callback import TrainingCheckpoint
from sb3_grpo.dapo import DAPO
from sb3_grpo.envs import HardPrompts, VerifierTextVecEnv
from sb3_grpo.groups.group import Group
from sb3_grpo.groups.samplers import VisitedStates
from sb3_grpo.grpo import GRPO
from sb3_grpo.starts.group_env import make_group_env
from sb3_grpo.starts.start_queue import StartQueue

SMALL: dict[str, Any] = {"group_size": 3, "n_groups": 2, "n_epochs": 1, "device": "cpu", "seed": 0, "policy_kwargs": TINY}


class Outcomes:
    """Mixed into an algorithm: keeps the groups that were drawn."""

    drawn: list[Group]

    def _take_groups(self, rollout: Any) -> None:
        self.drawn = [*getattr(self, "drawn", []), *self.collector.queue.wanted_groups()]  # type: ignore[attr-defined]
        super()._take_groups(rollout)  # type: ignore[misc]


class OutcomesGRPO(Outcomes, GRPO):
    pass


@pytest.mark.parametrize(
    ("algo", "n_envs", "kwargs"),
    [
        (GRPO, 1, {}),
        (DAPO, 8, {}),
        (GRPO, 1, {"vec_env_cls": SubprocVecEnv}),
        (DAPO, 3, {"vec_env_cls": SubprocVecEnv, "vec_env_kwargs": {"start_method": "forkserver"}}),
    ],
)
def test_any_number_of_copies(algo: type[GRPO], n_envs: int, kwargs: dict[str, Any]) -> None:
    env = make_group_env("CartPole-v1", n_envs, **kwargs)
    model = algo("MlpPolicy", env, **SMALL)
    assert model.n_envs == n_envs
    model.learn(300)
    assert model.num_timesteps >= 300
    assert model.num_timesteps % n_envs == 0
    assert model._n_updates >= 1
    assert model.batch is None or model.batch.lengths.shape[1] == 3
    assert all(info["r"] == info["l"] for info in model.ep_info_buffer)
    assert evaluate_policy(model, env, n_eval_episodes=2, warn=False)[0] >= 8
    env.close()


def test_make_vec_env_of_sb3() -> None:
    model = GRPO("MlpPolicy", make_vec_env("CartPole-v1", 3), **SMALL).learn(100)
    assert all(isinstance(env, StartQueue) for env in model.get_env().envs)
    env = make_vec_env("CartPole-v1", 2, wrapper_class=StartQueue, vec_env_cls=SubprocVecEnv)
    GRPO("MlpPolicy", env, **SMALL).learn(100)
    env.close()


@pytest.mark.parametrize("kind", ["dummy", "processes", "unrelated", "texts"])
def test_the_last_info_of_an_episode_names_its_group(kind: str) -> None:
    kwargs: dict[str, Any] = {**SMALL, "unrelated_starts": kind == "unrelated"}
    if kind == "texts":
        kwargs |= {"policy_kwargs": TINY_TEXT}
        env: VecEnv = VerifierTextVecEnv(3, seed=0, task=[("1+2=", "3"), ("2+2=", "4")])
    else:
        processes = {"vec_env_cls": SubprocVecEnv} if kind == "processes" else {}
        env = make_group_env(functools.partial(ToyEnv, length=None), 3, **processes)  # type: ignore[arg-type]
    ended: Counter[tuple[int, int]] = Counter()

    def note(local_vars: dict[str, Any], _: Any) -> bool:
        for done, info in zip(local_vars["dones"], local_vars["infos"], strict=True):
            assert done or "group" not in info
            ended[info.get("group"), info.get("group_member")] += int(done)
        return True

    GRPO("TokenPolicy" if kind == "texts" else "MlpPolicy", env, **kwargs).learn(150, callback=note)
    env.close()
    assert all(ended[group, member] == 1 for group in (0, 1) for member in range(3))


def test_same_groups_on_dummy_and_subproc() -> None:
    """The copies differ in the order in which they take starts, but the starts of the groups are the same."""
    starts = []
    for vec_env_cls in (DummyVecEnv, SubprocVecEnv):
        env = make_group_env(functools.partial(NoisyEnv, length=None), 3, vec_env_cls=vec_env_cls)
        model = OutcomesGRPO("MlpPolicy", env, **SMALL).learn(100)
        starts.append([group.start for group in model.drawn][:6])
        env.close()
    assert starts[0] == starts[1]
    assert len(set(start.seed for start in starts[0])) == 6


@pytest.mark.parametrize("vec_env_cls", [DummyVecEnv, SubprocVecEnv])
def test_vec_normalize(vec_env_cls: Any) -> None:
    inner = make_group_env(functools.partial(ToyEnv, length=None), 3, vec_env_cls=vec_env_cls)
    env = VecNormalize(inner, gamma=0.9, clip_obs=2.0)
    model = OutcomesGRPO("MlpPolicy", env, **SMALL)
    model.learn(200)
    batch = model.batch
    # The update sees normalised rewards and observations, and outcomes are sums of the environment's own rewards
    rewards = judged(model).batch.rewards[batch.mask]
    assert not np.isin(rewards.numpy(), [0.0, 1.0]).all()
    assert batch.observations.abs().max() <= 2.0
    outcomes = [episode.outcome for group in model.drawn for episode in group.episodes]
    assert set(outcomes) <= {float(k) for k in range(12)}
    assert len(set(outcomes)) > 3
    # SB3's Monitor below and ours agree
    assert {info["r"] for info in model.ep_info_buffer} <= {float(k) for k in range(12)}
    assert env.obs_rms.count > 200
    env.close()


def test_equal_outcomes_under_reward_normalization_are_dead() -> None:
    """The normalised rewards of equal episodes differ, as the statistics have moved on in between."""
    env = VecNormalize(make_group_env(functools.partial(ToyEnv, reward=0.1), 1))
    model = DAPO("MlpPolicy", env, max_sampling_rounds=2, **SMALL)
    with pytest.warns(UserWarning, match="same outcome"):
        model.learn(60)
    assert model._n_updates == 0


class BareVecEnv(VecEnv):
    """No more than PPO needs: it answers no questions, and reuses its arrays."""

    def __init__(self) -> None:
        super().__init__(4, spaces.Box(0.0, 99.0, (1,), np.float32), spaces.Discrete(2))
        self.time = np.zeros((4, 1), np.float32)

    def reset(self) -> np.ndarray:
        self.time[:] = 0.0
        return self.time

    def step_async(self, actions: np.ndarray) -> None:
        self.rewards = actions.astype(np.float32)

    def step_wait(self) -> Any:
        self.time += 1.0
        dones = self.time[:, 0] >= 5.0
        infos = [{"terminal_observation": each.copy()} for each in self.time]
        self.time[dones] = 0.0
        return self.time, self.rewards, dones, infos

    def close(self) -> None:
        pass

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        if attr_name != "render_mode":
            raise NotImplementedError
        return [None] * 4

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * 4


@pytest.mark.parametrize("wrap", [lambda env: env, VecMonitor])
@pytest.mark.parametrize("sizes", [{"n_steps": 16}, {"n_groups": 2}])
def test_a_vec_env_with_no_more_than_ppo_needs(sizes: dict[str, int], wrap: Any) -> None:
    env = wrap(BareVecEnv())
    model = GRPO("MlpPolicy", env, unrelated_starts=True, seed=0, device="cpu", **sizes)  # type: ignore[arg-type]
    seen = []
    train = model.train
    model.train = lambda: (seen.append(observations_of(model.batch)[:, 0]), train())  # type: ignore[method-assign, func-returns-value]
    model.learn(200)
    assert model._n_updates > 0
    # It writes into the array of observations that it has returned
    assert {*th.cat(seen).tolist()} == {0.0, 1.0, 2.0, 3.0, 4.0}
    if wrap is VecMonitor:
        assert {info["l"] for info in model.ep_info_buffer} == {5}
        assert {float(info["r"]) for info in model.ep_info_buffer} <= {0.0, 1.0, 2.0, 3.0, 4.0, 5.0}
    with pytest.raises(ValueError, match="BareVecEnv have no StartQueue"):
        GRPO("MlpPolicy", env, seed=0, **sizes).learn(10)  # type: ignore[arg-type]


class Refuses:
    """Cannot be asked: raises an error in answer to every question that PPO does not ask."""

    error: type[Exception]

    def _refuse(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "render_mode":
            return [None] * 4
        raise self.error(name)

    has_attr = get_attr = set_attr = env_method = env_is_wrapped = __getattr__ = getattr_depth_check = _refuse


class RefusingVecEnv(Refuses, BareVecEnv):
    pass


class RefusingWrapper(Refuses, VecEnvWrapper):
    """Around an object that is no VecEnv, and made without SB3's __init__, as that of SuperSuit."""

    def __init__(self) -> None:
        self.venv = inner = BareVecEnv()
        vars(self).update(num_envs=4, observation_space=inner.observation_space, action_space=inner.action_space)
        vars(self).update(render_mode=None, _seeds=[None] * 4, _options=[{}] * 4)
        self.venv = type("Simulator", (), {name: getattr(inner, name) for name in ("reset", "step_async", "step_wait")})

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        return self.venv.step_wait()


@pytest.mark.parametrize("error", [NotImplementedError, AttributeError, RecursionError, KeyError])
@pytest.mark.parametrize("cls", [RefusingVecEnv, RefusingWrapper])
def test_a_vec_env_that_cannot_be_asked(cls: Any, error: type[Exception], tmp_path: Path) -> None:
    env = type(cls.__name__, (cls,), {"error": error})()
    saved = TrainingCheckpoint(tmp_path, save_freq=1)
    model = GRPO("MlpPolicy", env, unrelated_starts=True, n_steps=16, device="cpu").learn(128, callback=saved)
    assert model._n_updates > 0
    with pytest.raises(ValueError, match=f"{cls.__name__} have no StartQueue"):
        GRPO("MlpPolicy", env, n_steps=16).learn(10)


def test_a_wrapper_that_cannot_be_asked_does_not_hide_the_copies() -> None:
    class Hides(Refuses, VecEnvWrapper):
        error = NotImplementedError

        def reset(self) -> Any:
            return self.venv.reset()

        def step_wait(self) -> Any:
            return self.venv.step_wait()

    env = Hides(make_group_env("CartPole-v1", n_envs=2, seed=0))
    model = GRPO("MlpPolicy", env, n_steps=64, group_size=2, device="cpu", start_sampler=VisitedStates(0.5)).learn(300)
    assert model._n_updates > 0


def test_a_method_that_cannot_be_called_is_said() -> None:
    class KnowsNames(BareVecEnv):
        def has_attr(self, attr_name: str) -> bool:
            return True

    with pytest.raises(
        ValueError, match=r"KnowsNames have a method action_masks\(\), and its env_method\('action_masks'\) raises Not"
    ):
        GRPO("MlpPolicy", KnowsNames(), unrelated_starts=True, n_steps=16).learn(64)


class Spoils(VecEnvWrapper):
    """
    Writes into all that it has returned as soon as it is stepped again, as environments that reuse their arrays and infos do.

    :param is_on: Whether it does
    """

    def __init__(self, venv: VecEnv, is_on: bool = True):
        super().__init__(venv)
        self.is_on, self.given = is_on, None

    def reset(self) -> Any:
        self.given = self.venv.reset()
        return self.given

    def step_async(self, actions: np.ndarray) -> None:
        self.venv.step_async(actions)
        if self.is_on:
            spoil(self.given)

    def step_wait(self) -> Any:
        self.given = self.venv.step_wait()
        return self.given


def spoil(part: Any) -> None:
    if isinstance(part, np.ndarray):
        part.fill(7)
    elif isinstance(part, list | tuple):
        for each in part:
            spoil(each)
    elif isinstance(part, dict):
        for key, value in part.items():
            spoil(value)
            if not isinstance(value, np.ndarray | dict):
                part[key] = None


BOX = spaces.Box(-1.0, 1.0, (2,))
BOXES = spaces.Dict({"a": BOX, "b": spaces.Discrete(3)})
IMAGE = spaces.Box(0, 255, (36, 36, 4), np.uint8)
BARE = {"net_arch": [], "normalize_observations": False}


def ends_early(answer: str, reference: str) -> float:
    return 1.0 / (1.0 + len(answer))


def limited() -> gym.Env:
    return ToyEnv(length=5, time_limit=True)


# The policy, the environment, what is around it, and arguments
BORDERS: dict[str, tuple[str, Any, Any, dict[str, Any]]] = {
    "steps": ("MlpPolicy", limited, None, {"n_steps": 16}),
    "steps, in processes": ("MlpPolicy", limited, None, {"n_steps": 16, "vec_env_cls": SubprocVecEnv}),
    "steps, in VecMonitor": ("MlpPolicy", limited, VecMonitor, {"n_steps": 16}),
    "steps, in VecNormalize": ("MlpPolicy", limited, VecNormalize, {"n_steps": 16}),
    "steps, in VecFrameStack": ("MlpPolicy", limited, lambda env: VecFrameStack(env, 2), {"n_steps": 16}),
    "groups": ("MlpPolicy", ToyEnv, None, {"n_groups": 2}),
    "a latent code that is the observation": (
        "MlpPolicy",
        lambda: SpacesEnv(BOX, BOX),
        None,
        {"n_steps": 16, "use_sde": True, "policy_kwargs": BARE},
    ),
    "a dict": ("MultiInputPolicy", lambda: SpacesEnv(BOXES, BOX, length=5, time_limit=True), None, {"n_steps": 16}),
    "images": ("CnnPolicy", lambda: SpacesEnv(IMAGE, spaces.Discrete(2)), None, {"n_steps": 8, "policy_kwargs": {}}),
    "visited states": ("MlpPolicy", "CartPole-v1", None, {"n_steps": 64, "start_sampler": lambda: VisitedStates(0.5)}),
    "texts": ("TokenPolicy", None, None, {"n_groups": 4, "policy_kwargs": TINY_TEXT, "start_sampler": lambda: HardPrompts(2)}),
}


@pytest.mark.parametrize("name", BORDERS)
def test_environments_may_reuse_all_that_they_return(name: str) -> None:
    policy, make, outside, more = BORDERS[name]

    def learned(is_on: bool) -> Any:
        kwargs = {**SMALL, "n_groups": None, **more}
        vec_env_cls = kwargs.pop("vec_env_cls", DummyVecEnv)
        if make is None:
            inner: VecEnv = VerifierTextVecEnv(4, seed=0, task=[("1+2=", "3"), ("2+2=", "4")], verifier=ends_early)
        else:
            inner = make_group_env(make, 3, vec_env_cls=vec_env_cls)
        env: VecEnv = Spoils(inner, is_on)
        env = env if outside is None else outside(env)
        if "start_sampler" in kwargs:
            kwargs["start_sampler"] = kwargs["start_sampler"]()
        model = GRPO(policy, env, **kwargs).learn(100)
        model.learn(50, reset_num_timesteps=False)
        env.close()
        episodes = [(float(info["r"]), info["l"]) for info in model.ep_info_buffer]
        return th.nn.utils.parameters_to_vector(model.policy.parameters()).tolist(), model.num_timesteps, episodes

    assert learned(True) == learned(False)


@pytest.mark.parametrize("action_space", [spaces.MultiBinary(3), spaces.MultiDiscrete([2, 2]), spaces.Box(-1.0, 1.0, (2,))])
def test_an_environment_may_change_its_array_of_actions(action_space: spaces.Space) -> None:
    class Changes(ToyEnv):
        def step(self, action: Any) -> Any:
            result = super().step(0)
            action += 1
            return result

    Changes.action_space = action_space  # type: ignore[assignment]
    model = GRPO("MlpPolicy", DummyVecEnv([Changes] * 2), n_steps=16, seed=0, device="cpu")
    actions: list[np.ndarray] = []
    model.learn(32, callback=lambda local_vars, _: actions.append(local_vars["actions"].copy()) or True)  # type: ignore[func-returns-value]
    np.testing.assert_array_equal(model.rollout_buffer.actions, np.reshape(actions, model.rollout_buffer.actions.shape))
    if not isinstance(action_space, spaces.Box):
        assert model.rollout_buffer.actions.max() == 1
