import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from toy_envs import TINY_TEXT, Numbered, step_both, without_time

from sb3_grpo.envs import VerifierError, VerifierTextEnv, VerifierTextVecEnv
from sb3_grpo.grpo import GRPO
from sb3_grpo.starts.group_env import capture_starts, ensure_start_queues, make_group_env
from sb3_grpo.starts.start_queue import StartQueue
from sb3_grpo.starts.starts import SeedStart, Start

ENV_ID = "sb3_grpo:sb3_grpo/VerifierText-v0"
N = 6
SETTINGS: list[dict[str, Any]] = [
    {"task": "arithmetic", "reward_wrong": -1.0},
    {"task": "guess_number"},
    {"task": "guess_number", "max_answer_tokens": 5, "max_reply_tokens": 1},
    {"task": Numbered(lambda index: (f"{index % 97}?", str(index % 7))), "max_prompt_tokens": 3, "max_answer_tokens": 4},
]


def pair_of_envs(settings: dict[str, Any], seed: int | None = 3) -> tuple[Any, VerifierTextVecEnv]:
    """The same copies twice: one by one, and all in one object."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        copies = make_group_env(VerifierTextEnv, n_envs=N, seed=seed, env_kwargs=settings)
    return copies, VerifierTextVecEnv(N, seed=seed, **settings)


def tickets_of(env: Any) -> list[int | None]:
    """Which queued starts the episodes in progress began from."""
    return [info.get("group_start") for info in env.reset_infos]


def play_both(copies: Any, batch: VerifierTextVecEnv, n_steps: int, rng: np.random.Generator) -> int:
    """
    :return: How many episodes have ended
    """
    eos, n_ended = batch.rules.tokenizer.eos_id, 0
    for _ in range(n_steps):
        n_ended += step_both(copies, batch, np.where(rng.random(N) < 0.4, eos, rng.integers(eos + 1, size=N)))
    return n_ended


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_same_as_single_copies(settings: dict[str, Any]) -> None:
    copies, batch = pair_of_envs(settings)
    assert batch.observation_space == copies.observation_space and batch.action_space == copies.action_space
    rng = np.random.default_rng(0)
    for _ in range(2):
        assert np.array_equal(copies.reset(), batch.reset())
        assert copies.reset_infos == batch.reset_infos
        assert play_both(copies, batch, 150, rng) > 100
    copies.seed(11), batch.seed(11)
    for env in (copies, batch):
        env.set_options([{"item": idx} for idx in range(N)])
    assert np.array_equal(copies.reset(), batch.reset())
    assert [info["item"] for info in batch.reset_infos] == list(range(N))
    play_both(copies, batch, 20, rng)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("noise", [False, True])
def test_the_same_from_queued_starts(settings: dict[str, Any], noise: bool) -> None:
    copies, batch = pair_of_envs(settings)
    queue = copies.get_attr("queue")[0]
    for env in copies.envs:
        env.queue = queue
    rng = np.random.default_rng(1)
    starts: list[Start] = [SeedStart(5), SeedStart(5), SeedStart(5, {"item": 4}), SeedStart(6)]
    for ticket in range(40):
        for env in (copies, batch):
            noise_seed = 7 * ticket if noise else None
            env.env_method("queue_start", ticket, starts[ticket % 4], noise_seed, indices=0)
    assert np.array_equal(copies.reset(), batch.reset())
    assert [info["group_start"] for info in batch.reset_infos] == list(range(N))
    # In the end no starts are left, and the copies go on with the generators of theirs
    for _ in range(8):
        play_both(copies, batch, 25, rng)
        assert data_equivalence(copies.get_attr("first_observation"), batch.get_attr("first_observation"), exact=True)
        assert tickets_of(copies) == tickets_of(batch)
        assert len(queue) == len(batch.queue)
    assert not batch.queue and tickets_of(batch) == [None] * N


@pytest.mark.parametrize("settings", SETTINGS[:2])
def test_snapshots_in_the_middle_of_an_answer(settings: dict[str, Any]) -> None:
    batch, other = VerifierTextVecEnv(2, seed=0, **settings), VerifierTextVecEnv(2, **settings)
    batch.reset()
    other.reset()
    eos = batch.rules.tokenizer.eos_id
    for actions in ([1, 2], [eos, 4])[: 2 if settings["task"] == "guess_number" else 1]:
        observations, _, dones, _ = batch.step(np.array(actions))
    assert not dones.any()
    snapshots = capture_starts(batch)
    for ticket, snapshot in enumerate(snapshots):
        other.queue_start(ticket, snapshot)
    assert np.array_equal(other.reset(), observations)
    assert other.reset_infos == [{"group_start": 0}, {"group_start": 1}]
    rng = np.random.default_rng(0)
    for _ in range(100):
        actions = np.where(rng.random(2) < 0.3, eos, rng.integers(10, size=2))
        expected, got = batch.step(actions), other.step(actions)
        # Episodes, rewards and the generators with which it goes on
        assert data_equivalence([*expected[:3]], [*got[:3]], exact=True)
        for one, two in zip(expected[3], got[3], strict=True):
            assert data_equivalence(without_time(one), without_time(two), exact=True)


def test_what_wrappers_and_algorithms_ask_for() -> None:
    batch = VerifierTextVecEnv(3, seed=0)
    ensure_start_queues(batch)
    assert batch.has_attr("queue_start") and not batch.has_attr("nothing")
    assert batch.env_is_wrapped(Monitor) == batch.env_is_wrapped(StartQueue) == [True] * 3
    assert batch.env_is_wrapped(gym.wrappers.TimeLimit, indices=[0, 1]) == [False] * 2
    batch.set_options({"item": 34})
    batch.reset()
    assert batch.get_attr("rules", indices=[0]) == [batch.rules]
    batch.set_attr("marked", 5)
    assert batch.get_attr("marked") == [5] * 3
    with pytest.raises(ValueError, match="can only be set for all"):
        batch.set_attr("marked", 6, indices=0)
    with pytest.raises(AttributeError, match="'max_answer_tokens' cannot be changed"):
        batch.set_attr("max_answer_tokens", 6)
    assert batch.get_attr("metadata") == [VerifierTextEnv.metadata] * 3 and batch.get_attr("spec", 0) == [None]
    with pytest.raises(AttributeError, match="no method 'fly', only queue_start"):
        batch.env_method("fly")
    with pytest.raises(ValueError, match="num_envs must be at least 1, got 0"):
        VerifierTextVecEnv(0)


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([0, 1, 13], "token from 0 to 12"),
        ([0, 1, -1], "token from 0 to 12"),
        ([0, 1], r"3 whole numbers.*shape \(2,\)"),
        ([0.5, 1.0, 2.0], "type float64"),
    ],
)
def test_wrong_actions_are_named(actions: list[float], message: str) -> None:
    batch = VerifierTextVecEnv(3)
    with pytest.raises(gym.error.ResetNeeded):
        batch.step(np.zeros(3, np.int64))
    batch.reset()
    with pytest.raises(ValueError, match=message):
        batch.step(np.array(actions))


def failing() -> Callable[[str, str], float]:
    def verifier(answer: str, reference: str) -> float:
        while answer == "9":
            pass
        if answer == "8":
            raise ValueError("eight")
        return float(answer == reference)

    return verifier


def test_failures_of_the_verifier_concern_one_copy() -> None:
    settings: dict[str, Any] = {"verifier": failing(), "verifier_timeout": 3.0}
    batch = VerifierTextVecEnv(4, on_verifier_error="zero", reward_wrong=-1.0, **settings)
    batch.set_options({"item": 34})
    batch.reset()
    batch.step(np.array([7, 8, 9, 7]))
    with pytest.warns(UserWarning, match="eight"):
        _, rewards, dones, infos = batch.step(np.full(4, 12))
    assert rewards.tolist() == [1, -1, -1, 1] and dones.all()
    assert ["verifier_error" in info for info in infos] == [False, True, True, False]
    assert batch.verifier_errors == 2 and batch.get_attr("verifier_errors") == [2] * 4
    batch.close()
    batch = VerifierTextVecEnv(1, **settings)
    batch.reset()
    batch.step(np.array([8]))
    with pytest.raises(VerifierError, match="eight"):
        batch.step(np.array([12]))
    for _ in range(9):
        with pytest.raises(gym.error.ResetNeeded, match=r"ended by an error: call reset\(\)"):
            batch.step(np.array([1]))
    batch.reset()
    batch.step(np.array([1]))
    batch.close()
    single = VerifierTextEnv(verifier=failing())
    single.reset()
    single.step(8)
    with pytest.raises(VerifierError, match="eight"):
        single.step(12)
    with pytest.raises(gym.error.ResetNeeded, match="ended by an error"):
        single.step(1)
    single.close()


@pytest.mark.filterwarnings("ignore:.*render_mode")
@pytest.mark.parametrize("task", ["arithmetic", "guess_number"])
@pytest.mark.parametrize("single", [False, True])
def test_training_and_evaluation(task: str, single: bool) -> None:
    env = make_vec_env(ENV_ID, 8, 0, env_kwargs={"task": task}) if single else VerifierTextVecEnv(8, seed=0, task=task)
    model = GRPO("TokenPolicy", env, group_size=4, n_groups=4, policy_kwargs=TINY_TEXT, device="cpu", seed=0).learn(300)
    assert model.num_timesteps >= 300
    assert len(model.ep_info_buffer or ()) > 30 and len(model.ep_success_buffer or ()) > 30
    mean, _ = evaluate_policy(model, env, n_eval_episodes=20)
    assert 0 <= mean <= 1
    # The evaluation has disturbed the groups
    model.learn(100, reset_num_timesteps=False)
