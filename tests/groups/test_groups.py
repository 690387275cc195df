import functools
import math
import re
from collections import Counter
from itertools import count
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv
from toy_envs import TINY, RecordingEnv, ToyEnv, observations_of

from sb3_grpo.dapo import DAPO
from sb3_grpo.groups.group import start_share
from sb3_grpo.groups.queue import GroupSettings, WholeGroupQueue
from sb3_grpo.groups.samplers import RandomSeeds
from sb3_grpo.grpo import GRPO
from sb3_grpo.starts.group_env import make_group_env
from sb3_grpo.starts.start_queue import StartQueue
from sb3_grpo.starts.starts import SeedStart

# (observation, action, reward)
Step = tuple[tuple[float, float], int, float]


class Batches:
    """Mixed into an algorithm: keeps the episodes of every batch, group by group, as the update sees them."""

    seen: list[list[list[Step]]]

    def train(self) -> None:
        batch = self.batch  # type: ignore[attr-defined]
        if batch is not None:
            assert (batch.episode.diff() >= 0).all(), "steps are in the order of groups and members"
            groups = []
            for idx in range(len(batch.lengths)):
                groups.append([self._steps(batch, idx, member) for member in range(batch.lengths.shape[1])])
            self.seen = [*getattr(self, "seen", []), *groups]
        super().train()  # type: ignore[misc]

    @staticmethod
    def _steps(batch: Any, group: int, member: int) -> list[Step]:
        steps = batch.episode == group * batch.lengths.shape[1] + member
        rows, length = batch.rows[steps], int(batch.lengths[group, member])
        assert batch.time[steps].tolist() == list(range(length))
        assert batch.mask[group, member].sum() == length
        observations = [tuple(each) for each in observations_of(batch, steps.nonzero().squeeze(1)).tolist()]
        return list(
            zip(observations, batch.actions[rows].tolist(), batch.rewards[group, member, :length].tolist(), strict=True)
        )


class RecordingGRPO(Batches, GRPO):
    pass


class RecordingDAPO(Batches, DAPO):
    pass


def recording_env(n_envs: int, subproc: bool = False, **kwargs: Any) -> VecEnv:
    envs = [functools.partial(make_recording_env, number, **kwargs) for number in range(n_envs)]
    return SubprocVecEnv(envs) if subproc else DummyVecEnv(envs)  # type: ignore[arg-type]


def make_recording_env(number: int, **kwargs: Any) -> StartQueue:
    return StartQueue(RecordingEnv(number, length=kwargs.pop("length", None), **kwargs))


def check_groups(model: Any, n_groups: int) -> None:
    """Every episode of every batch is one that an environment has played from beginning to end, and none is used twice."""
    assert len(model.seen) == n_groups
    played = [tuple(episode) for history in model.get_env().get_attr("history") for episode in history if episode]
    used = Counter(tuple(episode) for group in model.seen for episode in group)
    for group in model.seen:
        assert len({episode[0][0] for episode in group}) == 1, "the members of a group start alike"
    # Episodes of one step with the same start and action look the same
    assert not used - Counter(played)
    starts = [group[0][0][0] for group in model.seen]
    assert len(set(starts)) == len(starts), "each group has a start of its own"


# An update has 6 episodes
@pytest.mark.parametrize("algo", [RecordingGRPO, RecordingDAPO])
@pytest.mark.parametrize(("n_envs", "subproc"), [(1, False), (3, False), (6, False), (40, False), (3, True), (9, True)])
def test_every_transition_once(algo: Any, n_envs: int, subproc: bool) -> None:
    env = recording_env(n_envs, subproc)
    model = algo("MlpPolicy", env, group_size=3, n_groups=2, n_epochs=1, seed=0, policy_kwargs=TINY)
    model.learn(1)
    for _ in range(4):
        model.learn(1, reset_num_timesteps=False)
    # More copies than episodes of an update: some of the next updates are complete already
    check_groups(model, 10 if algo is RecordingGRPO and n_envs <= 6 else len(model.seen))
    if algo is RecordingDAPO:
        assert all(len({sum(step[2] for step in episode) for episode in group}) > 1 for group in model.seen)
    env.close()


def test_three_times_as_many_groups_begin_at_once_and_the_first_live_ones_are_kept() -> None:
    """DAPO's 1,536 and 512: here 12 groups of two, one in each pair of copies, and 4 of them."""
    queue = WholeGroupQueue(GroupSettings(2, 4, None, RandomSeeds()), 24, np.random.default_rng(0))
    episodes = [episode for episode in (queue.next_episode() for _ in range(24)) if episode is not None]
    assert Counter(episode.group.number for episode in episodes) == dict.fromkeys(range(12), 2)
    for episode in episodes[:16]:
        assert not queue.ready()
        is_live = episode.group.number % 2 == 1
        episode.length, episode.outcome = 1, float(is_live and episode.member)
        queue.end_episode(episode, {})
    # The update does not wait for the others
    assert queue.ready()
    assert [group.number for group in queue.take()] == list(range(8)), "up to the fourth live one"
    # Nor are they thrown away
    assert [group.number for group in queue.groups] == [8, 9, 10, 11]


def test_members_given_back_are_handed_out_next_and_in_order() -> None:
    queue = WholeGroupQueue(GroupSettings(3, 2, 1, RandomSeeds()), 4, np.random.default_rng(0))
    episodes: list[Any] = [queue.next_episode() for _ in range(4)]
    queue.give_back(episodes[1:])
    assert [queue.next_episode() for _ in range(3)] == episodes[1:]


def test_a_copy_that_passes_over_its_start_is_named() -> None:
    env = make_group_env(ToyEnv, 2, vec_env_cls=SubprocVecEnv)
    model = GRPO("MlpPolicy", env, group_size=2, n_groups=2, policy_kwargs=TINY, seed=0)
    with pytest.raises(RuntimeError, match=r"copy 0 was reset but did not begin the start .* outermost wrapper"):
        model.learn(100, callback=lambda *_: env.env_method("clear_starts") and model.num_timesteps < 100)
    env.close()


def test_work_ahead_is_used_in_order_and_bounded() -> None:
    env = recording_env(4)
    model = RecordingGRPO("MlpPolicy", env, group_size=2, n_groups=3, n_epochs=1, policy_kwargs=TINY, seed=0).learn(1)
    for _ in range(5):
        model.learn(1, reset_num_timesteps=False)
    used = {group[0][0][0][0] for group in model.seen}
    begun = Counter(episode[0][0][0] for history in env.get_attr("history") for episode in history if episode)
    # Every member of every group that was begun is in a batch, but for the groups that were open at the end
    assert all(begun[start] == 2 for start in used)
    assert len(begun) - len(used) <= 3 + 4 // 2


def test_free_copies_do_not_run_ahead_without_end() -> None:
    """One endless member holds up the update; the other copies begin the next update's groups, and then wait."""

    class OneLong(ToyEnv):
        def reset(self, **kwargs: Any) -> Any:  # type: ignore[override]
            result = super().reset(**kwargs)
            self.end = 200 if kwargs.get("options") else 3
            return result

    starts = (SeedStart(seed, {"long": True} if seed == 0 else None) for seed in count())
    n_open = []

    def look(local_vars: dict[str, Any], _: Any) -> bool:
        n_open.append(len(local_vars["self"].collector.queue.groups))
        return True

    env = make_group_env(OneLong, 4)
    sampler = functools.partial(next, starts)
    model = GRPO("MlpPolicy", env, group_size=2, n_groups=2, start_sampler=lambda _: sampler(), policy_kwargs=TINY)
    model.learn(1, callback=look)
    assert max(n_open) == 2 + 2 + 4 // 2
    assert model.batch.lengths.tolist() == [[200, 200], [3, 3]]
    assert model.num_timesteps == 4 * 200
    model.learn(1, reset_num_timesteps=False)
    assert model.batch.lengths.tolist() == [[3, 3], [3, 3]]


@pytest.mark.parametrize(("subproc", "reset_num_timesteps"), [(False, False), (True, True)])
def test_evaluation_on_the_training_environment_between_learns(subproc: bool, reset_num_timesteps: bool) -> None:
    env = recording_env(3, subproc)
    model = RecordingGRPO("MlpPolicy", env, group_size=3, n_groups=2, n_epochs=1, policy_kwargs=TINY, seed=0).learn(1)
    for _ in range(3):
        evaluate_policy(model, env, n_eval_episodes=4, warn=False)
        model.learn(1, reset_num_timesteps=reset_num_timesteps)
    check_groups(model, 8)
    env.close()


@pytest.mark.parametrize(("subproc", "every"), [(False, 3), (True, 7)])
def test_evaluation_on_the_training_environment_in_a_callback(subproc: bool, every: int) -> None:
    class Evaluate(BaseCallback):
        def _on_step(self) -> bool:
            if self.n_calls % every == 0:
                evaluate_policy(self.model, self.training_env, n_eval_episodes=2, warn=False)
            return True

    env = recording_env(3, subproc)
    model = RecordingGRPO("MlpPolicy", env, group_size=2, n_groups=1, n_epochs=1, policy_kwargs=TINY, seed=0)
    with pytest.warns(UserWarning, match="in the middle of a rollout"):
        model.learn(300, callback=Evaluate())
    assert model.num_timesteps >= 300
    check_groups(model, len(model.seen))
    env.close()


def test_another_environment_in_the_middle_of_a_rollout() -> None:
    model = RecordingGRPO("MlpPolicy", recording_env(2), group_size=2, n_groups=2, n_epochs=1, policy_kwargs=TINY, seed=0)
    model.learn(100, callback=lambda local_vars, _: local_vars["self"].num_timesteps < 8)
    model.set_env(recording_env(2), force_reset=False)
    model.learn(1, reset_num_timesteps=False)
    check_groups(model, 2)


@pytest.mark.parametrize("n_steps", range(1, 12, 3))
def test_resume_after_a_callback_stopped_in_the_middle_of_a_rollout(n_steps: int) -> None:
    env = recording_env(2)
    model = RecordingGRPO("MlpPolicy", env, group_size=2, n_groups=2, n_epochs=1, policy_kwargs=TINY, seed=0)
    check = CheckLogProbs()
    stop = ConvertCallback(lambda *_: model.num_timesteps < 2 * n_steps)
    model.learn(100, callback=[check, stop])
    assert model.num_timesteps == 2 * n_steps
    n_begun = [len(history) for history in env.get_attr("history")]
    model.learn(1, reset_num_timesteps=False, callback=check)
    check_groups(model, 2)
    # No environment was reset in between: the steps before the stop are in the batch
    used = [step for group in model.seen for episode in group for step in episode]
    assert len(used) >= 2 * n_steps - 2 * 11
    assert sum(len(history) for history in env.get_attr("history")) <= 4 + 2 * 2 + sum(n_begun)
    firsts = {episode[0][0] for group in model.seen for episode in group}
    assert env.get_attr("history")[0][0][0][0] in firsts, "the episode that was begun first was finished and used"


class CheckLogProbs(BaseCallback):
    """The log probabilities in the batch are those of the policy that has acted, if it has been changed since or not."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[Any, list[float]] = {}

    def _on_step(self) -> bool:
        actions = th.as_tensor(self.locals["actions"])
        obs = th.as_tensor(self.locals["obs"])
        log_probs = self.model.policy.get_distribution(obs).log_prob(actions)  # type: ignore[union-attr]
        for observation, action, log_prob in zip(obs.tolist(), actions.tolist(), log_probs, strict=True):
            self.known.setdefault((*observation, action), []).append(log_prob.item())
        return True

    def _on_rollout_end(self) -> None:
        batch = self.model.batch  # type: ignore[attr-defined]
        observations, actions = observations_of(batch).tolist(), batch.actions[batch.rows].tolist()
        for observation, action, log_prob in zip(observations, actions, batch.old_log_prob[batch.rows].tolist(), strict=True):
            assert np.isclose(log_prob, self.known[(*observation, action)], atol=1e-5).any()


@pytest.mark.parametrize("n_envs", [1, 3, 20])
def test_log_probs_of_every_batch(n_envs: int) -> None:
    model = GRPO("MlpPolicy", recording_env(n_envs), group_size=2, n_groups=2, learning_rate=0.01, policy_kwargs=TINY, seed=0)
    model.learn(400, callback=CheckLogProbs())
    assert model._n_updates > 10


class SamplingEnv(ToyEnv):
    """It draws its start from one of its spaces, which ``reset(seed=...)`` does not seed."""

    def __init__(self, space: str):
        super().__init__()
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float64)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float64)
        self.sampled: gym.Space = getattr(self, space)

    def reset(self, **kwargs: Any) -> Any:  # type: ignore[override]
        super().reset(**kwargs)
        self.start = self.sampled.sample()[0]
        return self.observe(), {}


@pytest.mark.parametrize("space", ["observation_space", "action_space"])
def test_starts_that_are_sampled_from_a_space(space: str) -> None:
    env = make_group_env(functools.partial(SamplingEnv, space), 3)
    model = GRPO("MlpPolicy", env, group_size=3, n_groups=4, n_epochs=1, policy_kwargs=TINY, seed=0)
    for _ in range(2):
        batch = model.learn(1, reset_num_timesteps=False).batch
        assert batch is not None
        starts = observations_of(batch)[batch.time == 0][:, 0].view(4, 3)
        assert (starts == starts[:, :1]).all()
        assert len(starts.unique()) == 4


def test_unrelated_starts() -> None:
    model = RecordingGRPO(
        "MlpPolicy", recording_env(3), group_size=3, n_groups=2, unrelated_starts=True, policy_kwargs=TINY, seed=0
    ).learn(1)
    played = {tuple(episode) for history in model.get_env().get_attr("history") for episode in history}
    for group in model.seen:
        assert len({episode[0][0] for episode in group}) == 3
        assert {tuple(episode) for episode in group} <= played


@pytest.mark.parametrize(("sizes", "vec_env_cls"), [({"n_groups": 1}, DummyVecEnv), ({"n_steps": 8}, SubprocVecEnv)])
def test_unrelated_starts_and_a_callback_that_resets_the_environment(sizes: dict[str, Any], vec_env_cls: Any) -> None:
    """No episode is made of the steps before and after."""

    class Resets(BaseCallback):
        def _on_step(self) -> bool:
            if self.n_calls == 3:
                self.training_env.reset()
            return True

        def _on_rollout_end(self) -> None:
            batch = self.model.batch  # type: ignore[attr-defined]
            # The second entry of the observation is the time
            assert observations_of(batch)[:, 1].tolist() == batch.time.tolist()
            self.seen = True

    env = make_group_env(functools.partial(ToyEnv, length=5), 3, vec_env_cls=vec_env_cls)
    model = GRPO("MlpPolicy", env, group_size=3, unrelated_starts=True, policy_kwargs=TINY, seed=0, **sizes)
    callback = Resets()
    with pytest.warns(UserWarning, match="reset in the middle of a rollout"):
        model.learn(15 if "n_groups" in sizes else 24, callback=callback)
    env.close()
    assert callback.seen


def test_the_share_of_the_start_in_the_variance() -> None:
    # By hand: means 1 and 4, 3 * var(means) = 13.5; variance within 1; (13.5 - 1) / (13.5 + 2 * 1)
    assert start_share(th.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])) == pytest.approx(12.5 / 15.5)
    generator = th.Generator().manual_seed(0)
    for share in (0.0, 0.3, 0.9):
        starts, noise = (th.randn(shape, generator=generator, dtype=th.float64) for shape in ((4000, 1), (4000, 4)))
        assert start_share(share**0.5 * starts + (1 - share) ** 0.5 * noise) == pytest.approx(share, abs=0.05)
    assert math.isnan(start_share(th.ones(3, 4)))


def test_the_share_of_starts_is_said_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    model = GRPO("MlpPolicy", make_group_env("CartPole-v1", 8), n_steps=64, seed=0, verbose=1, device="cpu")
    model.learn(3000, log_interval=None)
    said, of_rest = capsys.readouterr().out.splitlines()[-2:]
    assert said.startswith("group/start_share: ") and said.endswith("% of the variance of returns lies between starts.")
    assert re.match(r"group/start_share_left: \d+% of the variance of what values leave over lies between starts", of_rest)
