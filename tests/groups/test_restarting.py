"""Copies whose processes end, and a training that goes on as if nothing had happened."""

import gc
import multiprocessing as mp
import multiprocessing.connection
import os
import re
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecNormalize
from toy_envs import NoisyEnv, ToyEnv

from benchmarks.resume import Drift, digest
from sb3_grpo import DAPO, GRPO, RestartingSubprocVecEnv, SeedStart, TrainingCheckpoint, make_group_env
from sb3_grpo.groups import restarting as restarting_module
from sb3_grpo.groups.faults import EnvironmentFault

SMALL: dict[str, Any] = {"n_epochs": 2, "policy_kwargs": {"net_arch": [4]}, "seed": 0, "device": "cpu"}
STEPS: dict[str, Any] = {**SMALL, "n_steps": 16, "clip_range": 0.01}
GROUPS: dict[str, Any] = {**SMALL, "n_groups": 2, "group_size": 3}


@pytest.fixture(scope="module", autouse=True)
def _import_once() -> None:
    """Processes that are started have what takes long to import, if this is the first test of the process that starts some."""
    mp.set_forkserver_preload(["sb3_grpo", "benchmarks.resume"])


class Once(gym.Wrapper):
    """
    Does something once, whatever process it is in then.

    :param env: The environment
    :param place: "step", "reset" or "ask"
    :param at: How many times it is done before
    :param what: What it does
    :param mark: A file that is written before
    """

    def __init__(self, env: gym.Env, place: str, at: int, what: Callable[[], Any], mark: Path):
        super().__init__(env)
        self.place, self.left, self.what, self.mark = place, at, what, mark

    def count(self, place: str) -> None:
        if place == self.place:
            self.left -= 1
            if self.left < 0 and not self.mark.exists():
                self.mark.touch()
                self.what()

    def step(self, action: Any) -> Any:
        self.count("step")
        return super().step(action)

    def reset(self, **kwargs: Any) -> Any:
        self.count("reset")
        return super().reset(**kwargs)

    def ask(self) -> str:
        self.count("ask")
        return "an answer"


class Fails(ToyEnv):
    """
    The third step of each episode fails.

    :param how: What it does
    """

    def __init__(self, how: Callable[[], Any]):
        super().__init__()
        self.how = how

    def step(self, action: Any) -> Any:
        if self.t == 2:
            self.how()
        return super().step(action)


class Unseeded(ToyEnv):
    """
    Something that no seed determines.

    :param where: "observation" or "reward"
    """

    def __init__(self, where: str):
        super().__init__(length=8)
        self.where = where

    def step(self, action: Any) -> Any:
        observation, reward, *ends = super().step(action)
        noise = np.random.default_rng().random()
        return (observation, noise, *ends) if self.where == "reward" else (observation + noise, reward, *ends)


class Slow(ToyEnv):
    """A step takes its time."""

    def step(self, action: Any) -> Any:
        time.sleep(0.1)
        return super().step(action)


class Level(ToyEnv):
    """What is added to rewards can be set from outside."""

    level, bonus = 0.0, 0.0

    def rise(self, by: float) -> tuple[float, float]:
        self.level += by
        return self.level, by

    def step(self, action: Any) -> Any:
        observation, reward, *ends = super().step(action)
        return observation, reward + self.level + self.bonus, *ends


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise KeyError("no such place")


def hang() -> None:
    time.sleep(600)


def kill(env: VecEnv, *copies: int, by: int = signal.SIGKILL) -> None:
    for copy in copies:
        process = env.unwrapped.processes[copy]  # type: ignore[attr-defined]
        os.kill(process.pid, by)
        process.join()


class Kills(BaseCallback):
    """
    :param copies: Which copies' processes are ended after which calls
    """

    def __init__(self, copies: dict[int, list[int]]):
        super().__init__()
        self.copies = copies

    def _on_step(self) -> bool:
        kill(self.training_env, *self.copies.get(self.n_calls, []))
        return True


def restarting(env_id: Any, n_envs: int = 2, max_restarts: int = 3, **kwargs: Any) -> VecEnv:
    kwargs |= {"vec_env_cls": RestartingSubprocVecEnv, "vec_env_kwargs": {"max_restarts": max_restarts}}
    return make_group_env(env_id, n_envs=n_envs, seed=1, **kwargs)


def plain(env_id: Any, n_envs: int = 2, **kwargs: Any) -> VecEnv:
    return make_group_env(env_id, n_envs=n_envs, seed=1, vec_env_cls=SubprocVecEnv, **kwargs)


def learned(algorithm: type[GRPO], env: VecEnv, kwargs: dict[str, Any], callback: Any = None) -> str:
    model = algorithm("MlpPolicy", env, **kwargs).learn(200, callback=callback)
    env.close()
    assert model._n_updates > 0
    return digest(model)


@contextmanager
def restarts(*expected: tuple[int, str]) -> Iterator[None]:
    """
    :param expected: The copies that are started again, in this order, and how their processes have ended
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    said = [str(each.message) for each in caught if "started again" in str(each.message)]
    assert len(said) == len(expected), said
    for text, (copy, how) in zip(said, expected, strict=True):
        assert re.match(rf"Environment copy {copy}, step \d+ of its episode: it", text) and how in text


@pytest.mark.parametrize(
    ("algorithm", "env_id", "kwargs", "wrap"),
    [
        (GRPO, "CartPole-v1", STEPS, VecNormalize),
        (DAPO, Drift, GROUPS, VecNormalize),
        (DAPO, "CartPole-v1", {**STEPS, "vine_share": 0.5}, lambda env: env),
        (GRPO, "Pendulum-v1", {**GROUPS, "horizon": 10}, lambda env: env),
        # Killed while the second episodes are under way, the first of which is cut
        (GRPO, partial(NoisyEnv, length=48), STEPS, lambda env: env),
    ],
    ids=["steps", "groups", "snapshots", "horizon", "staggered"],
)
def test_a_training_goes_on_to_the_last_bit(algorithm: Any, env_id: Any, kwargs: dict[str, Any], wrap: Any) -> None:
    expected = learned(algorithm, wrap(plain(env_id)), kwargs)
    copies = [1, 0, 0, 1, 1]
    with restarts(*((copy, "its process was ended by SIGKILL") for copy in copies)):
        kills = Kills({3: [1], 31: [0], 50: [0, 1], 77: [1]})
        assert learned(algorithm, wrap(restarting(env_id)), kwargs, kills) == expected


@pytest.mark.parametrize(
    ("place", "what", "how"),
    [
        ("step", die, "its process was ended by SIGKILL"),
        ("reset", die, "its process was ended by SIGKILL"),
        ("ask", die, "its process was ended by SIGKILL"),
        ("step", fail, "its process ended with exit status 1"),
        ("step", hang, "it has not come back after 1 s (step_timeout)"),
    ],
    ids=["step", "reset", "method", "error", "hangs"],
)
def test_wherever_a_process_ends(place: str, what: Callable[[], Any], how: str, tmp_path: Path) -> None:
    class Asks(BaseCallback):
        def _on_step(self) -> bool:
            assert self.training_env.env_method("ask") == ["an answer"] * 2
            return True

    def trained(make_env: Any, mark: Path) -> str:
        made = make_env(NoisyEnv, wrapper_class=Once, wrapper_kwargs={"place": place, "at": 9, "what": what, "mark": mark})
        return learned(GRPO, made, {**STEPS, "step_timeout": 1.0 if what is hang else None}, Asks())

    (tmp_path / "no").touch()
    expected = trained(plain, tmp_path / "no")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert trained(restarting, tmp_path / "once") == expected
    # Both copies may be as far before the file is there
    said = [str(each.message) for each in caught if "started again" in str(each.message)]
    assert 1 <= len(said) <= 2 and all(how in each for each in said)


@pytest.mark.parametrize(
    ("max_restarts", "n_restarts", "fails", "how"),
    [
        (0, 0, fail, "its process ended with exit status 1"),
        (3, 1, fail, "its process ended with exit status 1"),
        (3, 1, hang, "it has not come back after 1 s"),
    ],
)
def test_what_happens_again_is_a_fault(max_restarts: int, n_restarts: int, fails: Callable[[], Any], how: str) -> None:
    env = restarting(Fails, max_restarts=max_restarts, env_kwargs={"how": fails})
    model = GRPO("MlpPolicy", env, **STEPS, step_timeout=1.0)
    said = rf"^Environment copy 0 \(Fails\), step 2 of its episode: {how}.* set_env"
    with restarts(*[(0, how)] * n_restarts), pytest.raises(EnvironmentFault, match=said):
        model.learn(200)
    assert not any(process.is_alive() for process in env.processes)  # type: ignore[attr-defined]


def test_too_many_restarts_are_a_fault() -> None:
    env = restarting("CartPole-v1", max_restarts=2)
    with (
        restarts((1, "1 of at most 2"), (0, "1 of at most 2"), (1, "2 of at most 2")),
        pytest.raises(EnvironmentFault, match=r"copy 1 \(CartPole-v1\), step 8 of its episode: .* SIGKILL"),
    ):
        learned(GRPO, env, STEPS, Kills({5: [1], 6: [0], 7: [1], 8: [1]}))
    env.close()


def test_who_is_asked_to_end_ends() -> None:
    env = restarting("CartPole-v1")
    env.reset()
    kill(env, 1, by=signal.SIGTERM)
    with restarts(), pytest.raises(EOFError):
        env.get_attr("spec")
    env.close()
    with restarts(), pytest.raises(OSError, match="closed"):
        env.get_attr("spec")


@pytest.mark.parametrize("where", ["observation", "reward"])
def test_an_environment_that_is_not_exact_is_named(where: str) -> None:
    env = restarting(Unseeded, env_kwargs={"where": where})
    model = GRPO("MlpPolicy", env, **STEPS)
    said = r"^Environment copy 1, step 5 of its episode: .* did not lead there: .*" + where + ".* is not exact from its start"
    with restarts((1, "SIGKILL")), pytest.raises(EnvironmentFault, match=said):
        model.learn(200, callback=Kills({5: [1]}))
    env.close()
    assert not any(process.is_alive() for process in env.processes)  # type: ignore[attr-defined]


def test_what_lasts_is_done_again() -> None:
    def play(env: VecEnv, kills: bool) -> list[Any]:
        seen: list[Any] = []

        def steps(n: int) -> None:
            for _ in range(n):
                seen.append(env.step([1, 0])[:3])

        env.reset()
        env.set_attr("bonus", 3.0)
        env.env_method("rise", 1.0)
        env.env_method("clear_starts")
        steps(9)  # ordinary episodes, with seeds of their own
        env.env_method("rise", 0.5)
        env.set_attr("bonus", 0.25, indices=1)
        for ticket in range(3):
            env.env_method("queue_start", ticket, SeedStart(ticket), None, 3)
        steps(8)  # into the second of them
        env.env_method("rise", 0.5)
        if kills:
            kill(env, 0, 1)
        steps(13)  # beyond the last
        env.close()
        return seen

    expected = play(plain(Level, env_kwargs={"length": 4}), kills=False)
    with restarts((0, "step 2 of its episode: its process was ended by SIGKILL"), (1, "step 2 of")):
        seen = play(restarting(Level, env_kwargs={"length": 4}), kills=True)
    for one, other in zip(expected, seen, strict=True):
        assert all(np.array_equal(*pair) for pair in zip(one, other, strict=True))


def test_each_step_has_its_time_again() -> None:
    kwargs = {**SMALL, "n_steps": 12, "step_timeout": 0.8}
    model = GRPO("MlpPolicy", restarting(Slow, n_envs=1, env_kwargs={"length": 12}), **kwargs)
    with restarts((0, "step 11 of its episode: its process was ended by SIGKILL")):
        model.learn(12, callback=Kills({11: [0]}))
    model.env.close()  # type: ignore[union-attr]


def test_episodes_that_are_too_long_are_not_played_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sb3_grpo.groups.restarting.MAX_RECORDED", 20)
    env = restarting(ToyEnv, n_envs=1)
    env.env_method("queue_start", 0, SeedStart(0))
    env.env_method("clear_starts")
    env.reset()
    for _ in range(30):
        env.step([1])
    env.env_method("queue_start", 1, SeedStart(1))
    for _ in range(30 % 4 or 4):
        env.step([1])
    kill(env, 0)
    with restarts((0, "step 0 of its episode")):
        env.step([1])
    for _ in range(30):
        env.step([1])
    kill(env, 0)
    with restarts(), pytest.raises(EOFError):
        env.step([1])
    env.close()


@pytest.mark.parametrize("env_id", ["CartPole-v1", NoisyEnv])
def test_checkpoints(env_id: Any, tmp_path: Path) -> None:
    checkpoint = partial(TrainingCheckpoint, save_freq=2, keep=100)
    expected = learned(GRPO, plain(env_id), STEPS, checkpoint(tmp_path / "plain"))
    kills = Kills({5: [0], 50: [1]})
    with restarts((0, "SIGKILL"), (1, "SIGKILL")):
        assert learned(GRPO, restarting(env_id), STEPS, [kills, checkpoint(tmp_path / "kills")]) == expected
    env = restarting(env_id)
    middle = sorted((tmp_path / "kills").iterdir())[1]
    with restarts((0, "SIGKILL"), (1, "SIGKILL")):
        model = GRPO.resume(middle, env, device="cpu").learn(callback=Kills({1: [0], 30: [1]}))
    assert digest(model) == expected
    env.close()


@pytest.mark.parametrize("waiting", [False, True])
def test_close_leaves_nothing(waiting: bool) -> None:
    handles = Path("/proc/self/fd")
    if not handles.exists():
        pytest.skip("no list of the handles of a process")
    restarting("CartPole-v1").close()  # what stays open for all processes
    gc.collect()  # what other tests have left would be closed in between
    before, others = len(list(handles.iterdir())), mp.active_children()
    env = restarting("CartPole-v1")
    env.reset()
    kill(env, 0)
    with restarts((0, "SIGKILL")):
        env.get_attr("spec")
    kill(env, 1)
    if waiting:
        env.step_async(np.zeros(2, np.int64))
    with restarts():
        env.close()
    env.close()
    assert set(mp.active_children()) <= set(others)
    del env
    assert len(list(handles.iterdir())) == before


def test_close_after_an_interruption() -> None:
    others = mp.active_children()
    env = restarting("CartPole-v1")
    env.reset()
    env.step_async(np.zeros(2, np.int64))
    kill(env, 1)
    with restarts((1, "SIGKILL")):
        # What learn does after Ctrl-C, in the middle of step_wait
        env.unwrapped.remotes[0].recv()  # type: ignore[attr-defined]
        env.env_method("clear_starts")
        env.close()
    assert set(mp.active_children()) <= set(others)


def test_arguments() -> None:
    with pytest.raises(ValueError, match="max_restarts must be at least 0"):
        RestartingSubprocVecEnv([ToyEnv], max_restarts=-1)
    with pytest.raises(ValueError, match="leave it out, or write 'forkserver' or 'spawn'"):
        RestartingSubprocVecEnv([ToyEnv], start_method="fork")


class Unreadable:
    def __reduce__(self) -> Any:
        return __import__, ("no_such_module_here",)


class Built(gym.Env):
    """Has starts of its own, and remembers the order of what is set and called."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,))
    action_space = gym.spaces.Discrete(2)
    level, built, ticket = 0, 0, None
    unreadable = property(lambda self: Unreadable())

    def build(self) -> None:
        self.built = self.level

    def queue_start(self, ticket: int) -> None:
        self.ticket = ticket

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        info = {} if self.ticket is None else {"group_start": self.ticket}
        self.ticket = None
        return np.zeros(1, np.float32), info

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(1, self.t, np.float32), 0.0, False, False, {}


def built() -> VecEnv:
    env = RestartingSubprocVecEnv([Built])
    env.reset()
    return env


def begin_again(env: VecEnv) -> None:
    env.env_method("queue_start", 1)
    env.reset()
    env.step(np.zeros(1, int))
    kill(env, 0)


def test_what_is_set_and_called_is_done_again_in_this_order() -> None:
    env = built()
    env.set_attr("level", 1)
    env.env_method("build")
    env.set_attr("level", 2)
    begin_again(env)
    with restarts((0, "SIGKILL")):
        assert env.step(np.zeros(1, int))[0] == 2
    assert (env.get_attr("built"), env.get_attr("level")) == ([1], [2])
    env.close()


def test_after_an_answer_that_cannot_be_read() -> None:
    env = built()
    with pytest.raises(ModuleNotFoundError):
        env.get_attr("unreadable")
    begin_again(env)
    with restarts((0, "SIGKILL")):
        assert env.step(np.zeros(1, int))[0] == 2
    env.close()


def test_too_many_calls_of_methods_to_do_them_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarting_module, "MAX_METHODS", 2)
    env = built()
    for _ in range(2):
        env.env_method("build")
    with pytest.warns(UserWarning, match=r"copy 0 is not started again .* 2 times, now env_method\('build'\).*get_attr"):
        env.env_method("build")
    begin_again(env)
    with restarts(), pytest.raises((EOFError, OSError)):
        env.step(np.zeros(1, int))
    env.closing = True  # type: ignore[attr-defined]
    env.close()


def test_connections_can_be_waited_for() -> None:
    env = built()
    env.step_async(np.zeros(1, int))
    assert mp.connection.wait(env.remotes, timeout=60) == [*env.remotes]  # type: ignore[attr-defined]
    assert env.remotes[0].poll()  # type: ignore[attr-defined]
    env.step_wait()
    env.close()
