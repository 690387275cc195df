import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

pytest.importorskip("ray")
pytest.importorskip("rl_zoo3")
pytest.importorskip("rliable")

import psutil
import ray
from compare_data import TINY

from sb3_grpo.classroom.compare.definition import make_experiment
from sb3_grpo.classroom.compare.running import run_jobs, run_on_ray
from sb3_grpo.console import UsageError

# Long enough to be killed in the middle
CONTENT = TINY | {"variants": [{"algo": "ppo", "hyperparams": {"n_envs": 4, "n_steps": 64}}], "timesteps": 20_000}


@pytest.fixture
def cluster() -> Iterator[None]:
    """Ray on this machine, with room for two runs."""
    for attempt in range(3):
        try:
            ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
            break
        except Exception as error:  # They have 30 seconds, which is not enough to compile them on a busy machine
            if "timed out during startup" not in str(error) or attempt == 2:
                raise
    yield
    ray.shutdown()


def is_server(process: psutil.Process | None) -> bool:
    """Whether it forks for runs, or is a run."""
    try:
        return process is not None and "multiprocessing.forkserver" in " ".join(process.cmdline())
    except psutil.Error:  # It ended between the listing and now
        return False


@pytest.mark.slow
def test_killed_worker_is_replaced(cluster: None, tmp_path: Path) -> None:
    experiment = make_experiment(CONTENT, "test")
    killed: list[psutil.Process] = []
    orphans: list[psutil.Process] = []

    def execute(runs: Any) -> Any:
        for update in run_on_ray(runs, "auto", None, "cpu"):
            mine = psutil.Process().children(recursive=True)
            servers = [each for each in mine if is_server(each) and not is_server(each.parent()) and each.children()]
            # Once both learn
            if not killed and len(servers) == 2:
                orphans.extend([servers[0], *servers[0].children()])
                killed.append(servers[0].parent())
                os.kill(killed[0].pid, signal.SIGKILL)
            yield update

    assert run_jobs(experiment, tmp_path, execute, Console()) == 0
    assert killed and not killed[0].is_running()
    _, alive = psutil.wait_procs(orphans, timeout=20)
    assert not alive, "the run of a dead worker does not go on"
    for seed in range(2):
        folder = tmp_path / "runs" / "CartPole-v1" / "ppo" / str(seed)
        names = {path.name for path in folder.iterdir()}
        expected = {"clip.webp", "config.json", "diagnostics.csv", "evaluations.csv", "log.txt", "model.zip", "result.json"}
        assert names == expected


def test_no_cluster(tmp_path: Path) -> None:
    execute = partial(run_on_ray, address="auto", n_workers=None, device="cpu")
    with pytest.raises(UsageError, match="ray start --head"):
        run_jobs(make_experiment(CONTENT, "test"), tmp_path, execute, Console())
