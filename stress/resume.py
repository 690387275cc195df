"""
Does an interrupted training run end bit-identical to an uninterrupted one?

For each setting: training without checkpoints, training that writes a checkpoint before each update, and in a new process
training that continues from some of these. All must agree in the SHA-256 of everything that has been learned.

``python -m stress.resume`` runs the settings without a row in ``results/resume.jsonl``; ``--only NAME ...`` repeats some.
"""

import argparse
import hashlib
import json
import multiprocessing
import pickle
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecFrameStack, VecNormalize

from benchmarks.common import RESULTS, rows
from benchmarks.timing import in_process
from sb3_grpo import DAPO, GRPO, TrainingCheckpoint, VisitedStates, make_group_env
from sb3_grpo.checkpoint.folder import checkpoints_in
from sb3_grpo.envs import HardPrompts, VerifierTextVecEnv

ROWS = RESULTS / "resume.jsonl"
SEED = 3
# Settings per process: importing takes longer than training
AT_A_TIME = 6


class Drift(gym.Env):
    """
    A user's environment that does not define how to capture its state. It draws from its random generator and from its space.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.action_space.seed(seed)
        self.place, self.t = self.np_random.normal(size=2), 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        push = 2 * action - 1 + 0.2 * float(self.action_space.sample())
        self.place = self.place + 0.1 * push + 0.05 * self.np_random.normal(size=2)
        self.t += 1
        reward = -float(np.abs(self.place).sum())
        return self._observation(), reward, bool(np.abs(self.place).max() > 3.0), self.t >= 60, {}

    def _observation(self) -> np.ndarray:
        return np.array([*self.place, self.t / 60], np.float32)


class NoisyDrift(Drift):
    """The same with noise from NumPy's global generator, which belongs to the process."""

    def __init__(self) -> None:
        np.random.seed(SEED)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, reward, *ends = super().step(action)
        return observation, reward + 0.1 * float(np.random.normal()), *ends  # type: ignore[return-value]


class Signals(gym.Env):
    """Observations with an image and numbers, several binary actions, and its own state."""

    observation_space = spaces.Dict(
        {"image": spaces.Box(0, 255, (3, 36, 36), np.uint8), "numbers": spaces.Box(-1.0, 1.0, (2,), np.float32)}
    )
    action_space = spaces.MultiBinary(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float((action == (self.numbers > 0)).sum())
        self.t += 1
        return self._observe(), reward, bool(self.np_random.random() < 0.05), self.t >= 40, {}

    def _observe(self) -> dict[str, np.ndarray]:
        self.numbers = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return {"image": self.np_random.integers(0, 256, (3, 36, 36), np.uint8), "numbers": self.numbers}

    def get_state(self) -> Any:
        return self.t, self.numbers.copy()

    def set_state(self, state: Any) -> None:
        self.t, self.numbers = state[0], state[1].copy()


class Setting(NamedTuple):
    """
    A training run.

    :param algorithm: The algorithm
    :param make_env: Creates the environment
    :param kwargs: Arguments for the algorithm
    :param timesteps: Number of steps
    :param policy: Name of the policy
    """

    algorithm: type[GRPO]
    make_env: Callable[[], VecEnv]
    kwargs: dict[str, Any]
    timesteps: int
    policy: str = "MlpPolicy"


STEPS: dict[str, Any] = {"n_steps": 64, "batch_size": 128, "n_epochs": 3}
GROUPS: dict[str, Any] = {"n_groups": 3, "group_size": 4, "batch_size": 128, "n_epochs": 3}
N_ENVS = 6
TEXT: dict[str, Any] = {
    "n_groups": 4,
    "group_size": 8,
    "batch_size": 64,
    "n_epochs": 2,
    "gamma": 1.0,
    "advantage_scale": "group",
    "policy_kwargs": {"n_layers": 1, "width": 16, "n_heads": 2},
}
REFERENCE = {"kl_coef": 0.05, "ref_update_interval": 3}


def _dummy(env_id: Any, **kwargs: Any) -> Callable[[], VecEnv]:
    return lambda: make_group_env(env_id, n_envs=N_ENVS, seed=SEED, **kwargs)


def _subproc(env_id: Any, **kwargs: Any) -> Callable[[], VecEnv]:
    return lambda: make_group_env(env_id, n_envs=3, seed=SEED, vec_env_cls=SubprocVecEnv, **kwargs)


def _normalised(make_env: Callable[[], VecEnv]) -> Callable[[], VecEnv]:
    return lambda: VecNormalize(make_env())


def _text(task: Any = "arithmetic", **kwargs: Any) -> Callable[[], VecEnv]:
    return lambda: VerifierTextVecEnv(24, seed=SEED, task=task, **kwargs)


def _pong() -> VecEnv:
    env = make_group_env(
        "PongNoFrameskip-v4",
        n_envs=3,
        seed=SEED,
        wrapper_class=AtariWrapper,
        wrapper_kwargs={"terminal_on_life_loss": False},
    )
    return VecFrameStack(env, n_stack=4)


def settings() -> dict[str, Setting]:
    """
    :return: All settings by name
    """
    found: dict[str, Setting] = {}
    kinds = {"Dummy": _dummy, "Subproc": _subproc}
    algorithms = {"GRPO": GRPO, "DAPO": DAPO}
    for name, algorithm in algorithms.items():
        for kind, make in kinds.items():
            cart_pole, pendulum = make("CartPole-v1"), make("Pendulum-v1")
            add = {
                "steps": (cart_pole, STEPS),
                "groups": (cart_pole, GROUPS),
                "VecNormalize": (_normalised(cart_pole), STEPS),
                "normalize_observations": (pendulum, STEPS),
                "gSDE": (pendulum, {**STEPS, "use_sde": True, "sde_sample_freq": 4}),
                "visited states": (cart_pole, {**STEPS, "start_sampler": VisitedStates(0.5)}),
                "reference": (cart_pole, {**STEPS, **REFERENCE}),
            }
            found |= {f"{name}, {kind}, {what}": Setting(algorithm, env, kw, 2500) for what, (env, kw) in add.items()}
        text = {
            "groups": (_text(task_kwargs={"digits": 1}), TEXT),
            "HardPrompts": (_text(task_kwargs={"digits": 1}), {**TEXT, "start_sampler": HardPrompts(100)}),
            "reference": (_text(task_kwargs={"digits": 1}), {**TEXT, **REFERENCE}),
            "several turns": (_text("guess_number"), TEXT),
        }
        found |= {
            f"{name}, VerifierTextVecEnv, {what}": Setting(algorithm, env, kw, 1500, "TokenPolicy")
            for what, (env, kw) in text.items()
        }
    schedules = {"learning_rate": LinearSchedule(1e-3, 0.0, 1.0), "clip_range": LinearSchedule(0.3, 0.1, 1.0)}
    visited = {**GROUPS, "start_sampler": VisitedStates(0.5)}
    in_reward = {**STEPS, **REFERENCE, "kl_estimator": "k1_in_reward"}
    one_epoch = {**STEPS, "n_epochs": 1}
    as_env = _dummy("sb3_grpo:sb3_grpo/VerifierText-v0", env_kwargs={"task_kwargs": {"digits": 1}})
    sticky = _dummy("ALE/Pong-v5", env_kwargs={"obs_type": "ram", "repeat_action_probability": 0.25})
    cart_pole = _dummy("CartPole-v1")
    more = {
        "GRPO, Dummy, groups and gSDE": Setting(GRPO, _dummy("Pendulum-v1"), {**GROUPS, "use_sde": True}, 8000),
        "DAPO, Subproc, groups and VecNormalize": Setting(DAPO, _normalised(_subproc("CartPole-v1")), GROUPS, 2500),
        "DAPO, Dummy, groups and visited states": Setting(DAPO, cart_pole, visited, 2500),
        "DAPO, Dummy, schedules": Setting(DAPO, cart_pole, {**STEPS, **schedules}, 2500),
        "GRPO, Dummy, KL in the reward": Setting(GRPO, cart_pole, in_reward, 2500),
        "GRPO, Dummy, unrelated starts": Setting(GRPO, cart_pole, {**STEPS, "unrelated_starts": True}, 2500),
        "GRPO, Dummy, sb3_grpo/VerifierText-v0": Setting(GRPO, as_env, TEXT, 800, "TokenPolicy"),
        "GRPO, Dummy, LunarLander (replayed)": Setting(GRPO, _dummy("LunarLander-v3"), STEPS, 2500),
        "DAPO, Subproc, BipedalWalker (replayed)": Setting(DAPO, _subproc("BipedalWalker-v3"), STEPS, 1500),
        "GRPO, Dummy, Hopper": Setting(GRPO, _dummy("Hopper-v5"), STEPS, 2500),
        "DAPO, Subproc, Hopper": Setting(DAPO, _subproc("Hopper-v5"), STEPS, 1500),
        "DAPO, Dummy, Pong": Setting(DAPO, _pong, one_epoch, 1500, "CnnPolicy"),
        "GRPO, Dummy, Pong with sticky actions (replayed)": Setting(GRPO, sticky, STEPS, 1500),
        "DAPO, Dummy, image and numbers": Setting(DAPO, _dummy(Signals), one_epoch, 1500, "MultiInputPolicy"),
        "GRPO, Dummy, FrozenLake": Setting(GRPO, _dummy("FrozenLake-v1"), STEPS, 2500),
        "GRPO, Dummy, no get_state": Setting(GRPO, _dummy(Drift), STEPS, 2500),
        "DAPO, Subproc, no get_state": Setting(DAPO, _subproc(Drift), STEPS, 1500),
        "DAPO, Dummy, no get_state, groups": Setting(DAPO, _dummy(Drift), GROUPS, 4000),
        "GRPO, Dummy, NumPy's own generator": Setting(GRPO, _dummy(NoisyDrift), STEPS, 2500),
        "DAPO, Subproc, NumPy's own generator": Setting(DAPO, _subproc(NoisyDrift), STEPS, 1500),
    }
    return found | more


def digest(model: GRPO) -> str:
    """
    :param model: A model after training
    :return: SHA-256 of everything it has learned, and of the states of its random generators
    """
    learned = {
        "parameters": model.get_parameters(),
        "regression": model.value_regression.state_dict(),
        "numbers": (model.num_timesteps, model._n_updates),
        "starts": model._start_rng.bit_generator.state,
        "torch": th.get_rng_state(),
    }
    normalize = model.get_vec_normalize_env()
    if normalize is not None:
        learned["VecNormalize"] = [normalize.obs_rms, normalize.ret_rms, normalize.returns]
    return hashlib.sha256(json.dumps(learned, default=_plain).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if not isinstance(value, np.ndarray | np.generic | th.Tensor):
        return vars(value)
    # A hash of the bytes: a network has too many numbers to write all of them. NumPy has no bfloat16
    kind, shape = str(value.dtype), tuple(value.shape)
    if isinstance(value, th.Tensor):
        value = value.cpu().reshape(-1).view(th.uint8).numpy()
    return kind, shape, hashlib.sha256(value.tobytes()).hexdigest()


def train(setting: Setting, folder: Path | None, device: str = "cpu") -> str:
    """
    :param setting: A training
    :param folder: Where a checkpoint is written before each update, ``None`` for none
    :param device: PyTorch device
    :return: The digest at the end
    """
    env = setting.make_env()
    # A copy of the sampler: each belongs to one training run
    kwargs = pickle.loads(pickle.dumps(setting.kwargs))
    model = setting.algorithm(setting.policy, env, seed=SEED, device=device, **kwargs)
    checkpoint = None if folder is None else TrainingCheckpoint(folder, save_freq=1, keep=1000)
    model.learn(setting.timesteps, callback=checkpoint)
    env.close()
    return digest(model)


def go_on(setting: Setting, path: Path) -> str:
    """
    :param setting: A training
    :param path: A checkpoint of it
    :return: The digest at the end
    """
    env = setting.make_env()
    model = setting.algorithm.resume(path, env, device="cpu").learn()
    env.close()
    return digest(model)


def try_settings(names: list[str]) -> list[dict[str, Any]]:
    """
    :param names: Names of settings, trained in one process and resumed in another
    :return: Their rows in the results
    """
    with tempfile.TemporaryDirectory() as folder:
        trained, resumed = (
            in_process("stress.resume", "--child", json.dumps([what, folder, names])) for what in ("train", "resume")
        )
    found = []
    for name in names:
        plain, with_checkpoints, n_checkpoints = trained[name]
        found.append(
            {
                "setting": name,
                "updates": n_checkpoints,
                "same_with_checkpoints": plain == with_checkpoints,
                "resumed_at": [steps for steps, _ in resumed[name]],
                "identical": [each == plain for _, each in resumed[name]],
                "sha256": plain[:16],
            }
        )
    return found


def _child(command: str, folder: str, names: list[str]) -> None:
    th.set_num_threads(1)
    # Or each process of a SubprocVecEnv imports PyTorch anew
    multiprocessing.set_forkserver_preload(["stress.resume"])
    results: dict[str, Any] = {}
    for number, name in enumerate(names):
        setting, checkpoints = settings()[name], Path(folder) / str(number)
        if command == "train":
            digests = train(setting, None), train(setting, checkpoints)
            results[name] = (*digests, len(checkpoints_in(checkpoints)))
            continue
        paths = checkpoints_in(checkpoints)
        with warnings.catch_warnings():
            # The warning that something was not saved
            warnings.filterwarnings("error", ".*(goes on with|perhaps not).*")
            # The middle one, then the others: what one leaves in the process must not matter to the next
            some = [paths[idx] for idx in dict.fromkeys((len(paths) // 2, 1, len(paths) - 1))]
            results[name] = [(int(path.name.split("_")[1]), go_on(setting, path)) for path in some]
    print(json.dumps(results))


def main() -> None:
    """Run what is asked for, and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="names of settings, to be run again")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        _child(*args.child)
        return
    done = {row["setting"]: row for row in rows(ROWS)}
    names = args.only or [name for name in settings() if name not in done]
    for part in [names[begin : begin + AT_A_TIME] for begin in range(0, len(names), AT_A_TIME)]:
        for row in try_settings(part):
            done[row["setting"]] = row
            good = row["same_with_checkpoints"] and all(row["identical"])
            print("same" if good else "DIFFERENT", json.dumps(row), flush=True)
        ROWS.write_text("".join(json.dumps(done[each]) + "\n" for each in settings() if each in done))
    n_same, n_tried = (sum(count(row["identical"]) for row in done.values()) for count in (sum, len))
    print(f"{n_same} of {n_tried} resumed trainings are identical, {len(done)} settings")


if __name__ == "__main__":
    main()
