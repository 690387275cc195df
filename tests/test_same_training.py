"""
Training stays the same: a few updates of sixteen configurations, compared with those of ``same_training.json``.

Rounding depends on the processor and on the versions of the libraries. Everywhere, what a few wrong roundings do not change is
compared: steps, updates, returns, and how far training has moved the parameters. Where processor and versions are those of the
file, parameters and random generators are the same to the last bit.

``python tests/test_same_training.py --against main`` compares, to the last bit and on any machine, with the package of another
commit: for changes that are meant to change nothing. ``python tests/test_same_training.py`` writes ``same_training.json``
anew, for changes that are meant to change training.
"""

import argparse
import hashlib
import json
import math
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3
import torch as th
from gymnasium import spaces
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.utils import safe_mean
from stable_baselines3.common.vec_env import SubprocVecEnv, VecNormalize

from sb3_grpo import DAPO, GRPO, capture_starts, make_atari_group_env, make_group_env, presets
from sb3_grpo.envs import VerifierTextVecEnv

ROOT = Path(__file__).resolve().parents[1]
EXPECTED = Path(__file__).with_name("same_training.json")
TINY: dict[str, Any] = {"policy_kwargs": {"net_arch": [8]}, "seed": 0, "device": "cpu"}
LSTM: dict[str, Any] = {**TINY, "policy_kwargs": {"net_arch": [8], "lstm_hidden_size": 8}}
TRANSFORMER: dict[str, Any] = {**TINY, "policy_kwargs": {"n_layers": 1, "width": 16, "n_heads": 2}}


class Lights(gym.Env):
    """The reward of a step is larger for larger actions, and for those of the light that only the first observation shows."""

    action_space = spaces.MultiDiscrete([2, 3])

    def __init__(self, observation_space: spaces.Space):
        self.observation_space = observation_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.light, self.time, self.end = self.np_random.integers(2), 0, self.np_random.integers(4, 12)
        return self.observe(), {}

    def observe(self) -> Any:
        self.observation_space.seed(int(self.light if self.time == 0 else self.np_random.integers(2, 1000)))
        return self.observation_space.sample()

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        reward = 0.1 * action.sum() + (action[0] == self.light)
        return self.observe(), float(reward), bool(self.time == self.end), False, {}


class MaskedLights(Lights):
    """One of the larger actions is forbidden, another at each step."""

    def action_masks(self) -> np.ndarray:
        return np.arange(5) != (1, 3, 4)[(self.time + self.light) % 3]


def lights(cls: type[Lights], observation_space: spaces.Space) -> Any:
    return make_group_env(lambda: cls(observation_space), 4, seed=0)


VECTOR, IMAGE = spaces.Box(-1.0, 1.0, (3,)), spaces.Box(0, 255, (1, 36, 36), np.uint8)


def steps_dapo() -> Any:
    return DAPO("MlpPolicy", make_group_env("CartPole-v1", 4, seed=0), n_steps=64, batch_size=64, learning_rate=3e-3, **TINY)


def steps_subproc() -> Any:
    env = make_group_env("CartPole-v1", 2, seed=0, vec_env_cls=SubprocVecEnv)
    return GRPO("MlpPolicy", env, n_steps=64, gae_lambda=0.9, batch_size=64, n_epochs=30, **TINY)


def steps_box() -> Any:
    env = make_group_env("Pendulum-v1", 4, seed=0)
    settings: dict[str, Any] = {"learning_rate": 3e-3, "gamma": 0.9, "ent_coef": 0.01, "target_kl": 0.05}
    return DAPO("MlpPolicy", env, n_steps=75, **settings, **TINY)


def steps_sde() -> Any:
    env = VecNormalize(make_group_env("Pendulum-v1", 4, seed=0, env_kwargs={"max_episode_steps": 50}))
    return GRPO("MlpPolicy", env, n_steps=50, use_sde=True, sde_sample_freq=8, **TINY)


def steps_grid() -> Any:
    env = make_group_env("MinAtar/Breakout-v1", 4, seed=0)
    return GRPO("MlpPolicy", env, n_steps=64, learning_rate=5e-3, ent_coef=0.01, **TINY)


def steps_image() -> Any:
    settings: dict[str, Any] = {**TINY, "policy_kwargs": {}}
    return GRPO("CnnPolicy", lights(Lights, IMAGE), n_steps=32, batch_size=64, n_epochs=6, **settings)


def steps_lstm() -> Any:
    return GRPO("MlpLstmPolicy", lights(Lights, VECTOR), n_steps=32, batch_size=64, **LSTM)


def steps_lstm_masks() -> Any:
    return DAPO(
        "MlpLstmPolicy", lights(MaskedLights, VECTOR), n_steps=32, batch_size=64, learning_rate=3e-3, ent_coef=0.01, **LSTM
    )


def groups_masks() -> Any:
    settings: dict[str, Any] = {"advantage": "return_to_go", "kl_coef": 0.1, "learning_rate": 5e-3}
    return GRPO("MlpPolicy", lights(MaskedLights, VECTOR), n_groups=4, batch_size=64, **settings, **TINY)


def groups_reference() -> Any:
    settings = {**presets.GRPO_PAPER, "group_size": 4, "n_groups": 2, "n_epochs": 10, "learning_rate": 1e-2}
    return GRPO("MlpPolicy", make_group_env("CartPole-v1", 4, seed=0), **settings, **TINY)


def groups_subproc() -> Any:
    env = make_group_env("CartPole-v1", 3, seed=0, vec_env_cls=SubprocVecEnv)
    return DAPO("MlpPolicy", env, n_groups=2, overlong_filter=True, batch_size=64, learning_rate=2e-3, **TINY)


def groups_dict() -> Any:
    env = lights(Lights, spaces.Dict(vector=VECTOR, number=spaces.Discrete(4)))
    settings = {**presets.GSPO, "n_groups": 6, "batch_size": 64, "n_epochs": 8, "clip_range": 0.01, "clip_range_high": 0.012}
    return GRPO("MultiInputPolicy", env, **settings, **TINY)


def groups_atari() -> Any:
    env = make_atari_group_env("ALE/Breakout-v5", 4, seed=0)
    # The layers of a CNN turn the last digits into others, and take long
    linear: dict[str, Any] = {**TINY, "policy_kwargs": {"features_extractor_class": FlattenExtractor, "net_arch": []}}
    settings: dict[str, Any] = {"dynamic_sampling": True, "learning_rate": 1e-4, "n_epochs": 10}
    return GRPO("CnnPolicy", env, group_size=2, n_groups=1, **settings, **linear)


def groups_snapshots() -> Any:
    env = make_group_env("Acrobot-v1", 4, seed=0)
    env.reset()
    for action in (0, 2, 0, 2, 2, 0):
        env.step(np.full(4, action))
    starts = capture_starts(env)
    settings: dict[str, Any] = {"learning_rate": 2e-3, "start_sampler": lambda rng: starts[rng.integers(len(starts))]}
    return DAPO("MlpPolicy", env, n_groups=2, **settings, **TINY)


def texts_dapo() -> Any:
    env = VerifierTextVecEnv(16, seed=0, task="arithmetic", task_kwargs={"digits": 1})
    settings = {**presets.DAPO_PAPER, "group_size": 8, "n_groups": 2, "n_epochs": 5, "overlong_range": (1, 4)}
    model: Any = DAPO("TokenPolicy", env, **settings, **TRANSFORMER)
    model.policy.pretrain(env.rules.task.worked_examples(50), n_epochs=40)
    return model


def texts_rloo() -> Any:
    env = VerifierTextVecEnv(8, seed=0, task="guess_number")
    model: Any = GRPO("TokenPolicy", env, **{**presets.RLOO, "n_groups": 3}, **TRANSFORMER)
    model.policy.pretrain(env.rules.task.worked_examples(10), n_epochs=100)
    return model


# Each configuration with its number of steps
CONFIGURATIONS: dict[Callable[[], Any], int] = {
    steps_dapo: 1000,
    steps_subproc: 500,
    steps_box: 900,
    steps_sde: 600,
    steps_grid: 1000,
    steps_image: 250,
    steps_lstm: 500,
    steps_lstm_masks: 500,
    groups_masks: 300,
    groups_reference: 1000,
    groups_subproc: 1000,
    groups_dict: 600,
    groups_atari: 1,
    groups_snapshots: 8000,
    texts_dapo: 500,
    texts_rloo: 500,
}


def processor() -> str:
    """
    :return: A hash of the kind of the processor, and of what torch and NumPy are told about it
    """
    path, told = Path("/proc/cpuinfo"), [os.environ.get(name) for name in ("ATEN_CPU_CAPABILITY", "OPENBLAS_CORETYPE")]
    lines = path.read_text().splitlines() if path.exists() else []
    kinds = [line for line in lines if line.startswith(("flags", "cpu family", "model\t"))][:3]
    return sha(platform.machine(), platform.processor(), *kinds, *told)


def where() -> dict[str, str]:
    """
    :return: What rounding depends on
    """
    versions = {"torch": th.__version__, "numpy": np.__version__, "gymnasium": gym.__version__}
    return {**versions, "stable_baselines3": stable_baselines3.__version__, "processor": processor()}


def sha(*parts: Any) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part if isinstance(part, bytes) else repr(part).encode())
    return digest.hexdigest()[:16]


class NotBuilt(Exception):
    """A model that cannot be built, as its arguments or its environment are not there."""


def train(make: Callable[[], Any], timesteps: int) -> dict[str, Any]:
    """
    :param make: One of ``CONFIGURATIONS``
    :param timesteps: Its number of steps
    :return: What has come out of its training: numbers, and hashes
    """
    threads = th.get_num_threads()
    th.set_num_threads(1)
    try:
        model = make()
    except Exception as error:
        th.set_num_threads(threads)
        raise NotBuilt from error
    try:
        before = [each.detach().double() for each in model.policy.parameters()]
        model.learn(timesteps)
        after = [each.detach().double() for each in model.policy.parameters()]
        envs = model.get_env().get_attr("np_random") if model.get_env().has_attr("np_random") else []
        return {
            "timesteps": model.num_timesteps,
            "updates": model._n_updates,
            "return": safe_mean([episode["r"] for episode in model.ep_info_buffer]),
            "change": [(new - old).norm().item() for new, old in zip(after, before, strict=True)],
            "hashes": {
                "parameters": sha(*(each.cpu().numpy().tobytes() for each in model.policy.state_dict().values())),
                "starts": sha(model._start_rng.bit_generator.state),
                "torch": sha(th.get_rng_state().numpy().tobytes()),
                "numpy": sha([np.asarray(each).tolist() for each in list(np.random.get_state())[1:]]),
                "python": sha(random.getstate()),
                "envs": sha(*(each.bit_generator.state for each in envs)),
            },
        }
    finally:
        model.get_env().close()
        th.set_num_threads(threads)


def distance(change: list[float], expected: list[float]) -> float:
    """
    :return: The largest difference between the changes of two parameters, relative to the change of all
    """
    if len(change) != len(expected):
        return math.inf
    return max(abs(one - other) for one, other in zip(change, expected, strict=True)) / math.hypot(*expected)


@pytest.mark.parametrize("make", CONFIGURATIONS, ids=lambda make: make.__name__)
def test_training_is_the_same(make: Callable[[], Any]) -> None:
    expected = json.loads(EXPECTED.read_text())
    result, wanted = train(make, CONFIGURATIONS[make]), expected["results"][make.__name__]
    for name in ("timesteps", "updates"):
        assert result[name] == wanted[name], name
    assert result["return"] == pytest.approx(wanted["return"], rel=1e-4, nan_ok=True)
    assert distance(result["change"], wanted["change"]) < 1e-4
    if where() == expected["where"]:
        assert result["hashes"] == wanted["hashes"]


def results_here() -> dict[str, Any]:
    """
    :return: For each configuration what has come out of its training, or the error that came out of it
    """
    results: dict[str, Any] = {}
    for make, timesteps in CONFIGURATIONS.items():
        try:
            results[make.__name__] = train(make, timesteps)
        except NotBuilt as error:
            results[make.__name__] = {"error": repr(error.__cause__), "built": False}
        except Exception as error:
            results[make.__name__] = {"error": repr(error), "built": True}
    return results


def results_of(checkout: Path) -> dict[str, Any]:
    """
    :param checkout: A folder with the package of a commit
    :return: What the configurations of this file lead to with it, in a process of its own
    """
    # From its folder of tests, whose package is that of the checkout, wherever another one is installed
    script = (
        "import json, sys, warnings; from pathlib import Path; import sb3_grpo, test_same_training as this\n"
        "warnings.simplefilter('ignore')\n"
        "assert Path(sb3_grpo.__file__).is_relative_to(this.ROOT), sb3_grpo.__file__\n"
        "json.dump(this.results_here(), open(sys.argv[1], 'w'))"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "results.json")
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        subprocess.run([sys.executable, "-c", script, str(path)], cwd=checkout / "tests", env=environment, check=True)
        return json.loads(path.read_text())


def results_at(commit: str) -> dict[str, Any]:
    """
    :param commit: A commit, a branch or a tag
    :return: What the configurations of this file lead to with its package
    """
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder, "checkout").resolve()
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "-q", "--detach", checkout, commit], check=True)
        try:
            shutil.copy(__file__, checkout / "tests" / Path(__file__).name)
            return results_of(checkout)
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", checkout], check=True)


def said_of(here: dict[str, Any], there: dict[str, Any]) -> str:
    """
    :param here: What has come out of a configuration with this checkout
    :param there: What has come out of it with the other commit
    :return: "the same", or what is different
    """
    if not there.get("built", True):
        return f"not compared, as it cannot be built there ({there['error']})"
    if "error" in here or "error" in there:
        return f"DIFFERENT: {here.get('error', 'trained')} here, {there.get('error', 'trained')} there"
    ours, theirs = ({**each, **each["hashes"], "return": repr(each["return"])} for each in (here, there))
    others = [name for name in ours if name != "hashes" and ours[name] != theirs[name]]
    return f"DIFFERENT: {', '.join(others)}" if others else "the same"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="COMMIT", help="compare with the package of this commit; write nothing")
    commit = parser.parse_args().against
    here = results_of(ROOT)
    if commit is None:
        if errors := {name: result["error"] for name, result in here.items() if "error" in result}:
            raise SystemExit(f"Nothing is written: {errors}")
        EXPECTED.write_text(json.dumps({"where": where(), "results": here}, indent=1) + "\n")
        return 0
    there = results_at(commit)
    said = {name: said_of(result, there[name]) for name, result in here.items()}
    for name, what in said.items():
        print(f"{name:18} {what}")
    return int(any(what.startswith("DIFFERENT") for what in said.values()))


if __name__ == "__main__":
    sys.exit(main())
