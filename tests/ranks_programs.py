"""
Programs that ``torchrun`` runs for the tests: ``torchrun --nproc-per-node 2 -m tests.ranks_programs NAME``. Rank 0 prints its
results as the last line, in JSON.
"""

import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.vec_env import VecNormalize
from torch import distributed as dist

from sb3_grpo import DAPO, GRPO, TrainingCheckpoint, make_group_env
from sb3_grpo.common.batch import GroupBatch
from sb3_grpo.envs import VerifierTextVecEnv
from sb3_grpo.groups.group import Group
from sb3_grpo.groups.samplers import StartSampler
from sb3_grpo.grpo import grpo
from sb3_grpo.starts.starts import SeedStart
from sb3_grpo.utils import ranks
from tests import test_same_training as configurations
from tests.toy_envs import TINY, TINY_TEXT, parameters_of


class Row(NamedTuple):
    """
    :param make: Makes a model, the same one each time
    :param settings: What else is set
    :param order: Sorts the groups, whose first share is that of the first rank
    :param alone: Whether the last rank has all groups
    """

    make: Callable[[], Any]
    settings: dict[str, Any]
    order: Callable[[Group], Any] = lambda group: 0
    alone: bool = False


def is_live(group: Group) -> bool:
    return len({episode.outcome for episode in group.episodes}) > 1


def length(group: Group) -> int:
    return sum(episode.length for episode in group.episodes)


def long_texts() -> Any:
    """Prompts of more than 128 tokens, whose groups stay together in minibatches."""
    pairs = [(140 * digit + "=", digit) for digit in "0123456789"]
    env = VerifierTextVecEnv(16, seed=0, task=pairs)
    sizes: dict[str, Any] = {"group_size": 8, "n_groups": 2, "batch_size": 16, "ent_coef": 0.1}
    model: Any = DAPO("TokenPolicy", env, **sizes, policy_kwargs=TINY_TEXT, seed=0, device="cpu")
    model.policy.pretrain(pairs, n_epochs=30)
    return model


ROWS = {
    "steps": Row(configurations.steps_dapo, {}),
    "steps, one minibatch": Row(configurations.steps_dapo, {"batch_size": None}),
    "steps, accumulated": Row(configurations.steps_dapo, {"gradient_accumulation_steps": 3}),
    "steps, all on one rank": Row(configurations.steps_dapo, {}, alone=True),
    "steps, longer ones on one rank": Row(configurations.steps_dapo, {}, length),
    "minibatches smaller than the ranks are many": Row(configurations.steps_dapo, {"batch_size": 2, "n_epochs": 1}),
    "actions are numbers, target_kl": Row(configurations.steps_box, {"target_kl": 1e-4}),
    "gSDE": Row(configurations.steps_box, {"use_sde": True}),
    "images": Row(configurations.steps_image, {}),
    "LSTM": Row(configurations.steps_lstm, {}),
    "LSTM and masks": Row(configurations.steps_lstm_masks, {}),
    "masks and reference": Row(configurations.groups_masks, {}),
    "average over episodes, reference": Row(configurations.groups_reference, {}),
    "average over steps": Row(configurations.groups_reference, {"loss_average": "step"}),
    "average by a constant": Row(configurations.groups_reference, {"loss_average": 100.0}),
    "MaxRL": Row(configurations.groups_reference, {"advantage": "maxrl"}),
    "CISPO": Row(configurations.groups_reference, {"policy_loss": "cispo"}),
    "regression on whole groups": Row(configurations.groups_reference, {"advantage": "gae"}),
    "ratio of episodes, dictionaries": Row(configurations.groups_dict, {}),
    "snapshots": Row(configurations.groups_snapshots, {}),
    "stacked frames": Row(configurations.groups_atari, {"n_groups": 2}),
    "texts": Row(configurations.texts_dapo, {"dynamic_sampling": False}),
    "texts, dead groups on one rank": Row(configurations.texts_dapo, {"dynamic_sampling": False, "n_groups": 6}, is_live),
    "texts with long prompts": Row(long_texts, {"dynamic_sampling": False}),
    "texts with KL in the reward": Row(configurations.texts_rloo, {}),
}


@contextmanager
def one_process() -> Iterator[None]:
    """As without ``torchrun``."""
    run = os.environ.pop("TORCHELASTIC_RUN_ID")
    yield
    os.environ["TORCHELASTIC_RUN_ID"] = run


def recorded(row: Row) -> tuple[Any, list[Group]]:
    """
    :return: A model that has collected its first groups and learned nothing from them, and these groups
    """
    model = row.make()
    if "use_sde" in row.settings:
        model = GRPO("MlpPolicy", model.env, n_steps=50, **row.settings, **configurations.TINY)
    else:
        vars(model).update(row.settings)
    kept: list[Group] = []
    make_batch = model.rollout_buffer.batch
    model.rollout_buffer.batch = lambda groups: kept.extend(groups) or make_batch(groups)
    model.train = lambda: None
    model.learn(1)
    del model.train, model.rollout_buffer.batch
    return model, sorted(kept, key=row.order)


def updates_of_one_process(row: Row) -> tuple[th.Tensor, th.Tensor]:
    """
    :return: The parameters before and after two updates
    """
    with one_process():
        model, groups = recorded(row)
        before = parameters_of(model)
        model.batch = model.rollout_buffer.batch(groups)
        for _ in range(2):
            th.manual_seed(int(np.random.SeedSequence([0, model.num_timesteps]).generate_state(1)[0]))
            model.train()
        after = parameters_of(model)
    assert not th.equal(after, before)
    return before, after


def difference(row: Row, before: th.Tensor, wanted: th.Tensor) -> float:
    """
    :return: How far two updates with a share of the groups on each rank differ from those of one process, relative to how
        far they have moved the parameters
    """
    with one_process():
        model, groups = recorded(row)
    bounds = [len(groups) * place // ranks.n_ranks() for place in range(ranks.n_ranks() + 1)]
    own = groups[bounds[ranks.rank()] : bounds[ranks.rank() + 1]]
    if row.alone:
        own = groups if ranks.rank() == ranks.n_ranks() - 1 else []
    parts = ranks.gather(model.rollout_buffer.batch(own) if own else None)
    model.batch = GroupBatch.joined([each for each in parts if each is not None])
    for _ in range(2):
        model.train()
    return ((parameters_of(model) - wanted).norm() / (wanted - before).norm()).item()


def equal(rows: Iterable[str] = ROWS) -> dict[str, Any]:
    """Updates with recorded groups: each rank does the whole update, or its share of each minibatch."""
    found = {}
    for name in rows:
        row = ROWS[name]
        before, wanted = updates_of_one_process(row)
        for shared in (False, True):
            grpo.shares_steps = lambda policy, shared=shared: shared  # type: ignore[attr-defined]
            found[f"{name}{', shared' if shared else ''}"] = difference(row, before, wanted)
    return found


def equal_for_more() -> dict[str, Any]:
    """With three ranks: shares that are not equal, or empty."""
    masks, episodes, constant = "masks and reference", "average over episodes, reference", "average by a constant"
    return equal(["steps", "minibatches smaller than the ranks are many", masks, episodes, constant])


def digest(model: Any) -> str:
    values = [each.detach().cpu().numpy().tobytes() for each in model.policy.state_dict().values()]
    return hashlib.sha256(b"".join(values)).hexdigest()[:16]


def pendulum() -> Any:
    return GRPO("MlpPolicy", "Pendulum-v1", n_envs=12, n_steps=32, policy_kwargs=TINY, seed=3, device="cpu")


def cart_pole(seed: int | None = 3) -> Any:
    settings: dict[str, Any] = {"n_groups": 5, "max_sampling_rounds": None, "n_epochs": 3, "learning_rate": 0.01}
    return DAPO("MlpPolicy", "CartPole-v1", n_envs=12, policy_kwargs=TINY, seed=seed, device="cpu", **settings)


def extended() -> Any:
    """Steps of dead groups do not count."""
    settings: dict[str, Any] = {"n_steps": 64, "n_epochs": 3, "dynamic_sampling": lambda outcomes: outcomes[:, 0] > 20.0}
    return DAPO("MlpPolicy", "CartPole-v1", n_envs=6, policy_kwargs=TINY, seed=3, device="cpu", **settings)


def fewer_groups() -> Any:
    """Fewer groups than ranks."""
    settings: dict[str, Any] = {"n_groups": 1, "group_size": 8, "n_epochs": 3, "advantage": "outcome"}
    return GRPO("MlpPolicy", "CartPole-v1", n_envs=6, policy_kwargs=TINY, seed=3, device="cpu", **settings)


def normalised_groups() -> Any:
    settings: dict[str, Any] = {"n_groups": 5, "n_epochs": 3, "policy_kwargs": {**TINY, "normalize_observations": True}}
    return DAPO("MlpPolicy", "CartPole-v1", n_envs=6, seed=3, device="cpu", **settings)


def texts() -> Any:
    env = VerifierTextVecEnv(12, seed=0)
    model: Any = DAPO("TokenPolicy", env, n_groups=6, policy_kwargs=TINY_TEXT, seed=3, device="cpu")
    model.policy.pretrain(env.rules.task.worked_examples(50), n_epochs=30)
    return model


def trained() -> dict[str, Any]:
    """Real training: what each rank ends with."""
    found: dict[str, Any] = {}
    for make, timesteps in ((pendulum, 7000), (cart_pole, 3000), (extended, 9000), (fewer_groups, 1000), (texts, 3000)):
        model = make()
        model.learn(timesteps)
        reported = [(episode["r"], episode["l"]) for episode in model.ep_info_buffer]
        each = digest(model), model.num_timesteps, model._n_updates, reported, model.ep_success_buffer
        found[make.__name__] = [str(values) for values in ranks.gather(each)]
    model = cart_pole(seed=None).learn(500)
    found["no seed"] = ranks.gather(digest(model))
    model = GRPO("MlpPolicy", "CartPole-v1", n_envs=6, n_steps=32, kl_coef=0.5, policy_kwargs=TINY, device="cpu")
    model.learn(1000, callback=Pretrains())
    found["reference"] = ranks.gather(th.nn.utils.parameters_to_vector(model.ref_policy.parameters()).tolist())
    found["reference, policy"] = ranks.gather(digest(model))
    return found


class Seeds(StartSampler):
    """Fresh seeds, and which groups have begun from them."""

    def __init__(self) -> None:
        self.drawn: list[int] = []
        self.played: dict[int, int] = {}

    def __call__(self, rng: np.random.Generator) -> SeedStart:
        self.drawn.append(int(rng.integers(2**31)))
        return SeedStart(self.drawn[-1])

    def after_episode(self, group: Group, episode: Any, info: dict[str, Any]) -> None:
        assert isinstance(group.start, SeedStart)
        self.played[group.number] = group.start.seed


def drawn() -> Any:
    """The seeds that a rank draws, those of the groups that each has played, by their numbers, and a random number."""
    seeds = Seeds()
    settings: dict[str, Any] = {"n_steps": 64, "policy_kwargs": TINY, "seed": 3, "device": "cpu", "start_sampler": seeds}
    model = DAPO("MlpPolicy", "CartPole-v1", n_envs=4, **settings).learn(1000)
    assert model.num_timesteps >= 1000
    return ranks.gather(seeds.drawn)[0], ranks.gather(seeds.played), ranks.gather(th.rand(1).item())


def messages() -> dict[str, Any]:
    """How often the ranks talk to each other while they train."""
    counts = {"gathered": 0, "summed": 0}

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return function(*args, **kwargs)

        return run

    dist.all_gather_object = counted("gathered", dist.all_gather_object)
    dist.all_reduce = counted("summed", dist.all_reduce)
    found: dict[str, Any] = {"updates": 5, "steps": 5 * 3 * 2}
    for name, width in (("small", 8), ("large", 1024)):
        settings: dict[str, Any] = {"policy_kwargs": {"net_arch": [width, width]}, "n_steps": 32, "n_epochs": 3, "seed": 0}
        model = GRPO("MlpPolicy", "Pendulum-v1", n_envs=4, batch_size=64, device="cpu", **settings)
        model.learn(128)
        counts.update(dict.fromkeys(counts, 0))
        model.learn(5 * 128, reset_num_timesteps=False)
        counts["gathered"] -= 1  # at the begin of learn
        found[name] = dict(counts)
    return found


def rounds() -> Any:
    """Only the groups of the second rank are live. How many groups an update learns from, and after how many rounds."""

    def second(outcomes: th.Tensor) -> th.Tensor:
        return th.full((len(outcomes),), ranks.rank() == 1)

    settings: dict[str, Any] = {"n_groups": 4, "max_sampling_rounds": 20, "policy_kwargs": TINY, "seed": 3, "device": "cpu"}
    model = DAPO("MlpPolicy", "CartPole-v1", n_envs=4, dynamic_sampling=second, **settings).learn(1)
    return [len(model.batch.lengths), ranks.gather(model._sampling_rounds)]


class StopAt(BaseCallback):
    """Stop the training in the middle of a rollout."""

    def __init__(self, n_calls: int):
        super().__init__()
        self.at = n_calls

    def _on_step(self) -> bool:
        return self.n_calls < self.at


def stopped() -> dict[str, Any]:
    """A callback ends the training: that of all ranks, after the same updates."""
    found = {}
    for make in (pendulum, cart_pole, extended, normalised_groups):
        model = make()
        model.learn(100_000, callback=StopAt(150))
        found[make.__name__] = ranks.gather((parameters_of(model).tolist(), model._n_updates, model.num_timesteps))
        model.learn(2000, reset_num_timesteps=False)
        found[make.__name__ + " goes on"] = ranks.gather((digest(model), model._n_updates))
    return found


class Pretrains(BaseCallback):
    def _on_training_start(self) -> None:
        self.counted: list[int] = []
        with th.no_grad():
            for each in self.model.policy.parameters():
                each.fill_(0.25)

    def _on_step(self) -> bool:
        self.counted.append(self.num_timesteps)
        return True


def once() -> dict[str, Any]:
    """Only the first rank logs, saves and calls callbacks, and its policy counts."""
    folder = Path(sys.argv[2])
    model = DAPO("MlpPolicy", "CartPole-v1", n_envs=4, n_steps=32, seed=0, tensorboard_log=str(folder / "log"), verbose=1)
    calls = Pretrains()
    model.learn(200, callback=calls, progress_bar=True)
    model.save(folder / f"model {ranks.rank()}")
    return {
        "parameters": ranks.gather(digest(model)),
        "calls": ranks.gather(calls.n_calls),
        "counted": getattr(calls, "counted", None),
        "verbose": ranks.gather(model.verbose),
        "files": sorted(str(path.relative_to(folder)).split(".tfevents")[0] for path in folder.rglob("*.*")),
    }


def refused() -> dict[str, Any]:
    """What cannot be trained in several processes says so, in each of them."""
    env = make_group_env("Pendulum-v1", n_envs=2)
    attempts: dict[str, Callable[[], Any]] = {
        "VecNormalize": lambda: GRPO("MlpPolicy", VecNormalize(env), n_steps=16).learn(32),
        "copies": lambda: GRPO("MlpPolicy", "Pendulum-v1", n_envs=3),
        "unequal": lambda: GRPO("MlpPolicy", make_group_env("Pendulum-v1", 2 + ranks.rank()), n_steps=16).learn(32),
        "seeds": lambda: GRPO("MlpPolicy", "Pendulum-v1", n_envs=2, n_steps=16, seed=ranks.rank()).learn(32),
        "changed": lambda: GRPO("MlpPolicy", "Pendulum-v1", n_envs=2, n_steps=16).learn(320, callback=Changes()),
    }
    said = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except ValueError as error:
            said[name] = str(error)
    return {name: [each.get(name) for each in ranks.gather(said)] for name in attempts}


class Changes(BaseCallback):
    """Changes a setting of the first rank."""

    def _on_step(self) -> bool:
        self.model.ent_coef = 0.1  # type: ignore[attr-defined]
        return True


class Falls(gym.Wrapper):
    """Falls over after some steps, in the second rank only."""

    n_steps = 0

    def step(self, action: Any) -> Any:
        self.n_steps += 1
        if ranks.rank() == 1 and self.n_steps == 500:
            raise OSError("the cart has fallen over")
        return super().step(action)


def fault() -> dict[str, Any]:
    """An environment of one rank fails."""
    env = make_group_env(lambda: Falls(gym.make("CartPole-v1")), n_envs=2)
    GRPO("MlpPolicy", env, n_steps=64, seed=0, device="cpu").learn(10_000_000)
    return {}


def disturbed() -> dict[str, Any]:
    """A callback resets the training environment of the first rank."""

    class Resets(BaseCallback):
        def _on_step(self) -> bool:
            if self.n_calls == 20:
                self.training_env.reset()
            return True

    pendulum().learn(10_000, callback=Resets())
    return {}


class KillAt(BaseCallback):
    """End this process in the middle of a rollout, or in an update, unless it was started again."""

    def _on_step(self) -> bool:
        n_steps, where = (int(each) if each.isdigit() else each for each in os.environ["KILL_AT"].split())
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and self.num_timesteps >= n_steps:
            if where == "rollout":
                os.kill(os.getpid(), signal.SIGKILL)
            self.model.train = lambda: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
        return True


def resumed() -> dict[str, Any]:
    """Goes on from its checkpoints, if there are any."""
    folder = Path(sys.argv[2])
    checkpoint = TrainingCheckpoint(folder, save_freq=500)
    model = DAPO.resume(folder) if folder.exists() else cart_pole()
    # Also in lists of lists
    callbacks = [CallbackList([KillAt(), CallbackList([checkpoint])])] if "KILL_AT" in os.environ else [checkpoint]
    model.learn(4000, callback=callbacks)
    reported = [episode["r"] for episode in model.ep_info_buffer]
    return {"parameters": ranks.gather((digest(model), model.num_timesteps, model._n_updates, reported))}


if __name__ == "__main__":
    th.set_num_threads(1)
    results = {name: globals()[name]() for name in sys.argv[1].split(",")}
    if ranks.rank() == 0:
        print(json.dumps(results))
