"""
Environments that fail, and the error messages: ``python -m stress.environment_faults``.

Copy 1 of 3 fails once during training. A fault counts as named if the message names the copy, the environment and
the step; as survived if ``close()`` returns, no process is left, and the model can be saved and loaded and is finite.
"""

import os
import re
import signal
import tempfile
import time
import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from rich.progress import track
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecNormalize

from sb3_grpo import DAPO, GRPO, make_group_env
from stress.common import write_trust

IN_ANY = (
    *("raises", "raises in reset", "returns None", "wrong shape"),
    *("nan observation", "infinite observation", "nan in reset", "nan reward", "infinite reward"),
)
IN_A_PROCESS = ("hangs", "is killed", "exits", "runs out of descriptors")
SETTINGS: dict[str, tuple[type[GRPO], dict[str, Any]]] = {
    "GRPO": (GRPO, {"n_steps": 32}),
    "DAPO": (DAPO, {"n_steps": 32}),
    "GRPO, whole groups": (GRPO, {"n_groups": 2}),
}
TIMEOUT = 6.0


class Failing(gym.Wrapper):
    """
    Fails in one of its steps, or in the first reset after it.

    :param env: The environment
    :param how: What happens
    :param at: In which of its steps
    """

    def __init__(self, env: gym.Env, how: str, at: int):
        super().__init__(env)
        self.how, self.at, self.n_steps = how, at, 0
        self.failed = False

    def reset(self, **kwargs: Any) -> Any:
        observation, info = self.env.reset(**kwargs)
        if self.n_steps < self.at or self.failed:
            return observation, info
        if self.how == "raises in reset":
            self.failed = True
            raise KeyError("no such place")
        if self.how == "nan in reset":
            self.failed = True
            observation = observation * np.nan
        return observation, info

    def step(self, action: Any) -> Any:
        self.n_steps += 1
        result = self.env.step(action)
        if self.n_steps != self.at or self.how.endswith("in reset"):
            return result
        return self._fail(*result)

    def _fail(self, observation: Any, reward: Any, *rest: Any) -> Any:
        if self.how == "raises":
            raise KeyError("no such place")
        if self.how == "hangs":
            time.sleep(600)
        if self.how == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "exits":
            os._exit(3)
        if self.how == "runs out of descriptors":
            os.closerange(3, 1024)
        values = {
            "returns None": None,
            "wrong shape": (np.zeros(5, np.float32), reward, *rest),
            "nan observation": (observation * np.nan, reward, *rest),
            "infinite observation": (observation + np.inf, reward, *rest),
            "nan reward": (observation, np.nan, *rest),
            "infinite reward": (observation, np.inf, *rest),
        }
        return values.get(self.how, (observation, reward, *rest))


def make_copies(how: str, at: int, vec_env_cls: type[DummyVecEnv | SubprocVecEnv], normalized: bool) -> VecEnv:
    """
    :param how: What happens
    :param at: In which step
    :param vec_env_cls: Class of the copies
    :param normalized: Whether they are wrapped in ``VecNormalize``
    :return: Three copies, of which the second fails
    """

    def build(idx: int) -> Callable[[], gym.Env]:
        def make() -> gym.Env:
            env = gym.make("CartPole-v1")
            return Failing(env, how, at) if idx == 1 else env

        return lambda: make_group_env(make, n_envs=1).envs[0]  # type: ignore[attr-defined]

    env: VecEnv = vec_env_cls([build(idx) for idx in range(3)])
    return VecNormalize(env) if normalized else env


def try_fault(
    how: str, at: int, vec_env_cls: type[DummyVecEnv | SubprocVecEnv], normalized: bool, setting: str
) -> dict[str, Any]:
    """
    :param how: What happens
    :param at: In which step
    :param vec_env_cls: Class of the copies
    :param normalized: Whether they are wrapped in ``VecNormalize``
    :param setting: One of ``SETTINGS``
    :return: The message, and what was left
    """
    algo, kwargs = SETTINGS[setting]
    env = make_copies(how, at, vec_env_cls, normalized)
    env.unwrapped.step_timeout = TIMEOUT
    model = algo("MlpPolicy", env, seed=0, device="cpu", n_epochs=1, **kwargs)
    message = "no error"
    try:
        model.learn(3_000)
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
    survived = True
    try:
        env.close()
        with tempfile.TemporaryDirectory() as folder:
            model.save(f"{folder}/model")
            loaded = algo.load(f"{folder}/model")
        survived = all(bool(th.isfinite(parameter).all()) for parameter in loaded.policy.parameters())
    except Exception as error:
        survived, message = False, f"{message}; afterwards {type(error).__name__}: {error}"
    copies = env.unwrapped
    if isinstance(copies, SubprocVecEnv):
        survived = survived and not any(process.is_alive() for process in copies.processes)
    named = re.search(r"Environment copy 1 \(CartPole-v1\), step \d+ of its episode: ", message) is not None
    return {
        "fault": how,
        "copies": vec_env_cls.__name__,
        "normalized": normalized,
        "setting": setting,
        "named": named,
        "survived": survived,
        "message": message if not (named and survived) else message[:160],
    }


def main() -> None:
    """Try all faults, and write down the results."""
    warnings.filterwarnings("ignore")
    tries = [
        *product(IN_ANY, (40, 41), (DummyVecEnv,), (False, True), SETTINGS),
        *product((*IN_ANY, *IN_A_PROCESS), (40,), (SubprocVecEnv,), (False, True), ("GRPO", "DAPO")),
    ]
    rows = [try_fault(*each) for each in track(tries, "Faults")]
    write_trust(
        "environment_faults",
        "environment faults: errors, hangs, processes that die, non-finite values",
        "an error names copy, environment and step; nothing is left running, and the model can be saved",
        len(rows),
        [row for row in rows if not (row["named"] and row["survived"])],
    )


if __name__ == "__main__":
    main()
