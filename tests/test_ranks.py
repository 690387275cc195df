"""One training in several processes: what ``torchrun`` starts here are the programs of ``ranks_programs.py``."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th

from sb3_grpo.groups.queue import GroupSettings, WholeGroupQueue
from sb3_grpo.groups.samplers import make_sampler
from sb3_grpo.starts.starts import SnapshotStart
from sb3_grpo.utils.ranks import shares_steps
from tests.ranks_programs import ROWS

ROOT = Path(__file__).resolve().parents[1]


def started(n_ranks: int, *program: Any, restarts: int = 0, **environment: str) -> "subprocess.Popen[str]":
    """
    :param n_ranks: Number of processes
    :param program: A module with its arguments
    :param restarts: How often they are started again
    :param environment: Further variables
    :return: torchrun, which has a process group of its own, as in a terminal
    """
    how = ["--standalone", "--nproc-per-node", str(n_ranks), "--max-restarts", str(restarts)]
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *how, "-m", *map(str, program)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def result(n_ranks: int, name: str, *arguments: Any, **more: Any) -> Any:
    """
    :param name: A program of ``ranks_programs.py``
    :return: Its result
    """
    return results(n_ranks, name, *arguments, **more)[name]


def results(n_ranks: int, names: str, *arguments: Any, **more: Any) -> dict[str, Any]:
    """
    :param names: Programs of ``ranks_programs.py``, with a comma in between
    :return: The result of each
    """
    out, err = (process := started(n_ranks, "tests.ranks_programs", names, *arguments, **more)).communicate(timeout=300)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


@pytest.fixture(scope="module")
def of_two() -> dict[str, Any]:
    """
    What two ranks do. To start them takes longer than most of these programs. ``messages`` is last, because it replaces
    functions of ``torch.distributed``.
    """
    return results(2, "trained,drawn,rounds,stopped,refused,messages")


def check_updates(differences: dict[str, float]) -> None:
    for name, difference in differences.items():
        # Sums of shares are rounded otherwise; a rank that makes the whole update makes that of one process
        assert difference < 1e-5 if name.endswith("shared") else difference == 0.0, name


@pytest.mark.slow
def test_the_same_groups_give_the_same_update() -> None:
    differences = result(2, "equal")
    assert len(differences) == 2 * len(ROWS)
    check_updates(differences)


def check_equal(found: dict[str, Any], n_ranks: int) -> None:
    for name, of_ranks in found.items():
        assert len(of_ranks) == n_ranks
        assert len({*map(str, of_ranks)}) == 1, name


def test_ranks_stay_equal(of_two: dict[str, Any]) -> None:
    check_equal(of_two["trained"], 2)


@pytest.mark.slow
def test_three_ranks_stay_equal() -> None:
    found = results(3, "trained,equal_for_more")
    check_equal(found["trained"], 3)
    check_updates(found["equal_for_more"])


def test_ranks_play_different_groups(of_two: dict[str, Any]) -> None:
    """Together, they draw the groups that one process draws, and each acts with its own random numbers."""
    drawn, played, numbers = of_two["drawn"]
    for rank, seeds in enumerate(played):
        assert len(seeds) > 3
        assert {int(number) % 2 for number in seeds} == {rank}
        assert all(drawn[int(number)] == seed for number, seed in seeds.items())
    assert numbers[0] != numbers[1]


def test_ranks_end_a_round_of_dynamic_sampling_together(of_two: dict[str, Any]) -> None:
    """What one rank lacks, another makes up for."""
    n_groups, n_rounds = of_two["rounds"]
    # 2 + 2 groups, 1 + 1, then one, whose turn it is: 2 + 1 + 1 live ones
    assert n_groups == 4 and n_rounds[0] == n_rounds[1] <= 4


def test_a_callback_stops_all_ranks(of_two: dict[str, Any]) -> None:
    for name, of_ranks in of_two["stopped"].items():
        assert of_ranks[0] == of_ranks[1], name


def test_only_the_first_rank_logs_saves_and_calls(tmp_path: Path) -> None:
    found = result(2, "once", tmp_path)
    assert len({*found["parameters"]}) == 1
    assert found["calls"][0] > 0 == found["calls"][1]
    assert found["counted"] == [*range(4, 257, 4)]  # the steps of all ranks
    assert found["verbose"] == [1, 0]
    assert found["files"] == ["log/DAPO_1/events.out", "model 0.zip"]


def test_what_several_processes_cannot_train_is_refused(of_two: dict[str, Any]) -> None:
    found = of_two["refused"]
    assert found["VecNormalize"] == 2 * [
        "VecNormalize has its own statistics in each of several processes: leave it out, and write "
        "policy_kwargs=dict(normalize_observations=True)."
    ]
    assert found["copies"] == 2 * ["2 processes cannot share 3 copies equally: give n_envs=4, for example."]
    assert found["unequal"] == 2 * ["Each process needs as many copies as the others, and they have n_envs=[2, 3]."]
    assert found["seeds"] == 2 * ["All processes need the same seed, and have seed=[0, 1]: they act differently all the same."]
    assert all("come apart: ent_coef is not the same in all after 0 steps. What a" in said for said in found["changed"])


def test_messages_of_an_update(of_two: dict[str, Any]) -> None:
    """One message for each rollout, and one for each step of the optimizer if ranks share it."""
    found = of_two["messages"]
    assert found["small"] == {"gathered": found["updates"], "summed": 0}
    assert found["large"] == {"gathered": found["updates"], "summed": found["steps"]}


def test_an_error_ends_all_ranks() -> None:
    # Others would wait for hours
    _, err = (process := started(2, "tests.ranks_programs", "fault")).communicate(timeout=300)
    assert process.returncode != 0
    assert err.count("OSError: the cart has fallen over") > 0
    assert err.count("Rank 0 ends, because another rank has ended: see what that one says.") == 1


def test_groups_of_different_ranks_have_different_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    start, seeds = SnapshotStart(None, (), b""), set()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        settings = GroupSettings(2, 4, 1, make_sampler(lambda rng: start))
        queue = WholeGroupQueue(settings, 2, np.random.default_rng(0))
        groups = [queue.next_episode().group for _ in range(6)]  # type: ignore[union-attr]
        seeds |= {group.noise_seed for group in groups}
        assert {group.number % 2 for group in groups} == {int(rank)}
    assert len(seeds) == 6


def test_batch_norm_sees_whole_minibatches() -> None:
    policy = th.nn.Sequential(th.nn.Linear(2, 2))
    policy.reads_images, policy.reads_texts = True, False  # type: ignore[assignment]
    assert shares_steps(policy)
    policy.append(th.nn.BatchNorm1d(2))
    assert not shares_steps(policy)


def test_a_reset_training_environment_ends_all_ranks() -> None:
    _, err = (process := started(2, "tests.ranks_programs", "disturbed")).communicate(timeout=300)
    assert process.returncode != 0
    assert "which several processes cannot make up for: use a separate environment in callbacks." in err


@pytest.mark.slow
def test_a_killed_rank_is_resumed_to_the_last_bit(tmp_path: Path) -> None:
    wanted = result(2, "resumed", tmp_path / "whole")["parameters"]
    assert wanted[0] == wanted[1]
    for number, where in enumerate(("100 rollout", "1800 train")):
        found = result(2, "resumed", tmp_path / str(number), restarts=1, KILL_AT=where)
        assert found["parameters"] == wanted, where
    _, err = started(3, "tests.ranks_programs", "resumed", tmp_path / "whole").communicate(timeout=300)
    assert "holds the episodes of 2 processes, and these are 3: resume it with torchrun --nproc-per-node 2." in err
