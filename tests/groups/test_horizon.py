from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecFrameStack, VecMonitor, VecNormalize
from toy_envs import TINY, ToyEnv

from sb3_grpo.common import residuals
from sb3_grpo.common.baselines import regression_values
from sb3_grpo.dapo import DAPO
from sb3_grpo.envs import VerifierTextVecEnv
from sb3_grpo.groups import samplers
from sb3_grpo.groups.group import Group
from sb3_grpo.grpo import GRPO
from sb3_grpo.starts.start_queue import StartQueue, make_group_env
from sb3_grpo.starts.starts import SeedStart, SnapshotStart, StartNotSupportedError

SETTINGS: dict[str, Any] = {"group_size": 3, "n_groups": 2, "policy_kwargs": TINY, "device": "cpu", "seed": 0, "n_epochs": 1}


def pendulum(kind: str = "dummy", n_envs: int = 4) -> VecEnv:
    kwargs: dict[str, Any] = {"env_kwargs": {"max_episode_steps": 20}}
    if kind == "subproc":
        kwargs |= {"vec_env_cls": SubprocVecEnv, "vec_env_kwargs": {"start_method": "fork"}}
    return make_group_env("Pendulum-v1", n_envs, seed=0, **kwargs)


def n_played(group: Group) -> int:
    """Steps of the pieces before."""
    return group.start.n_played if isinstance(group.start, samplers.CutEpisode) else 0


class Groups(BaseCallback):
    """Keeps the groups of all updates, the last observation of each of their members, and the episodes that are reported."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: list[Any] = []
        self.last: dict[int, np.ndarray] = {}
        self.reported: list[tuple[int, float]] = []
        self.overlong: list[float] = []

    def _on_training_start(self) -> None:
        self._note_playing()

    def _on_rollout_start(self) -> None:
        self._note_playing()  # all may have ended in the rollout before

    def _note_playing(self) -> None:
        assert isinstance(self.model, GRPO)
        self._playing = self.model.collector.tickets.copy()
        self._wanted = self.model.collector.queue.wanted_groups()

    def _on_step(self) -> bool:
        for idx in self.locals["dones"].nonzero()[0]:
            info = self.locals["infos"][idx]
            self.last[self._playing[idx]] = info["terminal_observation"]
            if "episode" in info:
                self.reported.append((info["episode"]["l"], info["episode"]["r"]))
        self._note_playing()
        return True

    def _on_rollout_end(self) -> None:
        self.groups += self._wanted
        self.overlong.append(self.logger.name_to_value["group/overlong_fraction"])


def learn(env: VecEnv, steps: int = 1500, cls: type[GRPO] = GRPO, **changes: Any) -> tuple[GRPO, Groups]:
    callback = Groups()
    model = cls("MlpPolicy", env, **{"horizon": 8, **SETTINGS, **changes})
    return model.learn(steps, callback=callback), callback


def test_an_update_has_pieces_of_all_ages() -> None:
    """With as many episodes under way as an update takes, all are at the same age, from the first update to the last."""
    env = make_group_env("Pendulum-v1", 4, seed=0, env_kwargs={"max_episode_steps": 80})
    _, seen = learn(env, 12_000, n_groups=4)
    ages = np.array([group.start.elapsed if isinstance(group.start, SnapshotStart) else 0 for group in seen.groups])
    updates = ages[: len(ages) // 4 * 4].reshape(-1, 4)[20:]
    assert len(updates) > 80 and np.mean([len({*update}) > 1 for update in updates]) > 0.9
    counts = np.bincount(updates.flatten() // 8, minlength=10)
    assert counts.min() > 0.4 * counts.mean()
    # Nor do small updates go through the ages one after the other
    env = make_group_env("Pendulum-v1", 4, seed=0, env_kwargs={"max_episode_steps": 80})
    _, seen = learn(env, 6000, n_groups=1)
    ages = np.array([group.start.elapsed if isinstance(group.start, SnapshotStart) else 0 for group in seen.groups])[60:]
    assert len(ages) > 100 and np.mean(np.abs(np.diff(ages)) > 16) > 0.2


@pytest.mark.parametrize("kind", ["dummy", "subproc"])
@pytest.mark.parametrize("cls", [GRPO, DAPO])
def test_groups_go_on_where_first_members_were_cut(kind: str, cls: type[GRPO]) -> None:
    env = pendulum(kind)
    model, seen = learn(env, cls=cls)
    assert model.horizon == 8 and len(seen.groups) > 30
    going_on = [group for group in seen.groups if isinstance(group.start, SnapshotStart)]
    assert {group.start.elapsed for group in going_on} == {8, 16}
    for group in seen.groups:
        elapsed = group.start.elapsed if group in going_on else 0
        assert {episode.length for episode in group.episodes} == {min(8, 20 - elapsed)}
        assert all(episode.truncated == (elapsed == 16) for episode in group.episodes)
    ends = {seen.last[group.episodes[0].ticket].tobytes() for group in seen.groups}
    others = {seen.last[episode.ticket].tobytes() for group in seen.groups for episode in group.episodes[1:]}
    begun = [group.first_observation.tobytes() for group in going_on]
    # Once each, and every one of them but those that wait
    assert {*begun} <= ends - others and len({*begun}) == len(begun)
    cut = [group for group in seen.groups if group.episodes[0].length == 8]
    assert len(cut) - 24 < len(begun) <= len(cut)
    env.close()


def test_whole_episodes_are_reported_once() -> None:
    _, seen = learn(make_group_env("Pendulum-v1", 4, seed=0, env_kwargs={"max_episode_steps": 20}, wrapper_class=Finisher))
    of_first = {group.episodes[0].ticket: group for group in seen.groups}
    ended = [group for group in of_first.values() if group.episodes[0].truncated]
    assert len(seen.reported) >= len(ended) > 10
    assert len(seen.reported) < len(ended) + 6  # those whose groups were not complete at the end
    assert seen.model.ep_success_buffer and all(seen.model.ep_success_buffer)
    assert {length for length, _ in seen.reported} == {20}
    # The return of all pieces, which is between that of the last one and the worst there is
    last_pieces = {round(group.episodes[0].outcome, 3) for group in ended}
    assert all(-17.0 * 20 < total <= 0.0 and round(total, 3) not in last_pieces for _, total in seen.reported)
    assert 0.0 < np.mean(seen.overlong) < 0.6


def test_pieces_that_are_long_enough_are_whole_episodes() -> None:
    models = [
        GRPO("MlpPolicy", make_group_env("CartPole-v1", 4, seed=0), **SETTINGS, horizon=horizon).learn(1000)
        for horizon in (None, 500)
    ]
    for one, other in zip(*(model.policy.parameters() for model in models), strict=True):
        assert one.equal(other)


def test_an_episode_in_pieces_is_the_episode() -> None:
    """Of a simulator that is put back by replaying its actions, too."""
    for env_id, actions in (("CartPole-v1", [0, 1] * 6), ("LunarLander-v3", [0, 2, 3, 1] * 3)):
        if env_id == "LunarLander-v3":
            pytest.importorskip("Box2D")
        whole, pieces = (make_group_env(env_id, 1, seed=0) for _ in range(2))
        whole.env_method("queue_start", 1, SeedStart(3))
        pieces.env_method("queue_start", 1, SeedStart(3), None, 5, True)
        assert np.array_equal(whole.reset(), pieces.reset())
        for step, action in enumerate(actions, start=1):
            expected, got = whole.step(np.array([action])), pieces.step(np.array([action]))
            assert got[2][0] == (step % 5 == 0) and not expected[2][0]
            assert np.array_equal(expected[1], got[1])
            if got[2][0]:
                assert np.array_equal(expected[0][0], got[3][0]["terminal_observation"])
                assert not got[3][0].get("episode")
                # The step has begun something else already
                pieces.env_method("queue_start", step, got[3][0]["group_cut_at"], None, 5, True)
                got = (pieces.reset(), *got[1:])
            assert np.array_equal(expected[0], got[0])


def test_the_last_step_of_an_episode_is_not_a_cut() -> None:
    env = StartQueue(ToyEnv(length=4))
    env.queue_start(1, SeedStart(0), horizon=4)
    env.reset()
    *_, terminated, truncated, info = [env.step(1) for _ in range(4)][-1]
    assert terminated and not truncated and "group_cut_at" not in info
    # Nor is a state captured from which nothing shall go on
    env = StartQueue(NoState(length=9))
    env.queue_start(1, SeedStart(0), horizon=4)
    env.reset()
    *_, terminated, truncated, info = [env.step(1) for _ in range(4)][-1]
    assert truncated and not terminated and info["group_cut_at"] is None


def test_others_need_not_wait_for_an_ordinary_episode() -> None:
    env = StartQueue(ToyEnv(length=9))
    env.queue_start(1, SeedStart(0), horizon=4)
    env.reset()
    env.step(1)
    env.reset()
    assert [env.step(1)[3] for _ in range(4)] == [False, False, False, True]
    env.clear_starts()
    env.reset()
    assert not any(env.step(1)[3] for _ in range(8))


class OftenShort(ToyEnv):
    """An episode ends in the fifth step, one in four only in the sixtieth."""

    def get_state(self) -> Any:
        return self.start, self.t, self.end

    def set_state(self, state: Any) -> None:
        self.start, self.t, self.end = state

    def reset(self, **kwargs: Any) -> Any:
        result = super().reset(**kwargs)
        self.end = 60 if self.np_random.random() < 0.25 else 5
        return result


@pytest.mark.parametrize(("vec_env_cls", "least"), [(DummyVecEnv, 0.94), (SubprocVecEnv, 0.75)])
def test_copies_without_work(vec_env_cls: Any, least: float) -> None:
    kwargs = {"start_method": "fork"} if vec_env_cls is SubprocVecEnv else {}
    env = make_group_env(OftenShort, 8, seed=0, vec_env_cls=vec_env_cls, vec_env_kwargs=kwargs)
    model, seen = learn(env, 8000, group_size=2, n_groups=4, horizon=20)
    # They are cut like the others, so that they have work again soon
    played = sum(episode.length for group in seen.groups for episode in group.episodes)
    assert played > least * model.num_timesteps
    # And nothing is told of what they play: the short ones of those that begin there would be told, the long ones not
    ended = [n_played(group) + first.length for group in seen.groups for first in group.episodes[:1]]
    n_long, n_short = ended.count(60), ended.count(5)
    reported = [length for length, _ in seen.reported]
    assert n_long > 10 and {*reported} == {5, 60}
    assert 0 <= reported.count(60) - n_long <= 4 and 0 <= reported.count(5) - n_short <= 4
    # Whoever takes the environment over has whole episodes
    env.reset()
    lengths = {info["episode"]["l"] for _ in range(200) for info in env.step(np.zeros(8, int))[3] if "episode" in info}
    assert lengths == {5, 60}
    env.close()


def test_the_regression_knows_the_place_in_the_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    last: list[int] = []

    def fit(numbers: th.Tensor, time: th.Tensor, *args: th.Tensor) -> th.Tensor:
        last.append(int(time.max()))
        return regression_values(numbers, time, *args)

    monkeypatch.setattr(residuals, "regression_values", fit)
    learn(pendulum())
    assert {*last} <= {3, 7} and 7 in last


def test_another_environment_and_another_horizon() -> None:
    model, _ = learn(VecNormalize(pendulum(), norm_reward=False))
    env = make_group_env("Pendulum-v1", 4, seed=0, env_kwargs={"max_episode_steps": 20, "g": 5.0})
    model.set_env(VecNormalize(env, norm_reward=False))
    # Its groups do not begin in states of the environment before
    model.learn(500)
    model.horizon = 5
    seen = Groups()
    model.learn(500, callback=seen, reset_num_timesteps=False)
    assert {episode.length for group in seen.groups for episode in group.episodes} == {5}
    model.horizon = None
    seen = Groups()
    model.learn(500, callback=seen, reset_num_timesteps=False)
    assert not any(isinstance(group.start, SnapshotStart) for group in seen.groups)


def test_it_is_saved(tmp_path: Any) -> None:
    model, _ = learn(pendulum(), 200)
    model.save(tmp_path / "model")
    loaded = GRPO.load(tmp_path / "model", pendulum())
    assert loaded.horizon == 8
    loaded.learn(200)


def test_noise_of_its_own_for_each_member() -> None:
    n_seeds = {}
    for common in (True, False):
        env = make_group_env("FrozenLake-v1", 4, seed=0, env_kwargs={"max_episode_steps": 20, "map_name": "8x8"})
        _, seen = learn(env, 3000, common_noise=common, group_size=2, advantage="outcome", policy_kwargs={"net_arch": []})
        going_on = [group for group in seen.groups if isinstance(group.start, SnapshotStart)]
        n_seeds[common] = [len({*group.noise_seeds}) for group in going_on]
    assert len(n_seeds[True]) > 10 and {*n_seeds[True]} == {1} and {*n_seeds[False]} == {2}


def test_gsde() -> None:
    model, seen = learn(pendulum(), use_sde=True, policy_kwargs=TINY | {"log_std_init": -2.0})
    assert len(seen.groups) > 30 and all(np.isfinite(p.detach().numpy()).all() for p in model.policy.parameters())
    # Each member explores in its own way
    ends = [{seen.last[episode.ticket].tobytes() for episode in group.episodes} for group in seen.groups]
    assert all(len(places) == 3 for places in ends)


def test_dead_pieces_are_replaced() -> None:
    """Most pieces of a task with a reward at the end have none."""
    env = make_group_env(RewardAtTheEnd, 4, seed=0)
    model, seen = learn(env, 6000, dynamic_sampling=True, max_sampling_rounds=10, advantage="outcome")
    assert model._n_updates > 3
    assert len(seen.groups) > len(seen.overlong) * model.n_groups
    going_on = [group for group in seen.groups if isinstance(group.start, SnapshotStart)]
    assert {n_played(group) for group in going_on} == {8, 16}


def test_whole_numbers_of_all_kinds() -> None:
    _, seen = learn(pendulum(), 200, horizon=np.int64(5))
    assert {episode.length for group in seen.groups for episode in group.episodes} == {5}


def test_mistakes_are_explained() -> None:
    for settings, message in (
        ({"horizon": 0}, "horizon must be at least 1, or None for whole episodes, got 0"),
        ({"horizon": 2.5}, "got 2.5"),
        ({"horizon": "9"}, "got '9'"),
        ({"horizon": 9, "unrelated_starts": True}, "leave unrelated_starts=False"),
        ({"horizon": 9, "vine_share": 0.1}, "leave vine_share=0"),
        ({"horizon": 9, "overlong_filter": True}, "judge whole episodes"),
    ):
        with pytest.raises(ValueError, match=message):
            GRPO("MlpPolicy", "CartPole-v1", **settings)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"VerifierTextVecEnv cannot cut .* make_group_env"):
        GRPO("TokenPolicy", VerifierTextVecEnv(4, seed=0), horizon=9).learn(1)
    with pytest.raises(StartNotSupportedError, match="FrameStackObservation"):
        learn(VecFrameStack(pendulum(), 2))
    with pytest.raises(ValueError, match=r"leave it out\. Monitor"):
        learn(VecMonitor(pendulum()))
    for vec_env_cls in (DummyVecEnv, SubprocVecEnv):
        with pytest.raises(StartNotSupportedError, match=r"get_state\(self\).* Without snapshots \(horizon=None"):
            learn(make_group_env(NoState, 2, seed=0, vec_env_cls=vec_env_cls))


def test_an_endless_episode_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "MAX_EPISODE_LENGTH", 100)
    with pytest.warns(UserWarning, match=r"has not ended after 1\d\d steps"):
        _, seen = learn(make_group_env(Endless, 4, seed=0), 10_000)
    # Others begin
    assert max(n_played(group) for group in seen.groups) == 96
    assert len({id(group.start) for group in seen.groups if isinstance(group.start, SeedStart)}) > 16


class Finisher(gym.Wrapper):
    """Success is to get to the end."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, {**info, "is_success": terminated or truncated}


class Endless(ToyEnv):
    """It goes on for ever, and its state is its attributes."""

    def get_state(self) -> Any:
        return self.start, self.t

    def set_state(self, state: Any) -> None:
        self.start, self.t = state

    def step(self, action: int) -> Any:
        self.t += 1
        return self.observe(), 1.0, False, False, {}


class RewardAtTheEnd(Endless):
    """In step 20, if the last action was the right one."""

    def step(self, action: int) -> Any:
        observation, *_ = super().step(action)
        ended = self.t == 20
        return observation, float(ended and action == 1), ended, False, {}


class NoState(ToyEnv):
    """Nobody knows how to capture it."""
