import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

pytest.importorskip("ray")
pytest.importorskip("rl_zoo3")
pytest.importorskip("rliable")

import psutil
import ray

from sb3_grpo.classroom.compare.definition import make_experiment
from sb3_grpo.classroom.compare.pools import RayPool
from sb3_grpo.classroom.compare.schedule import Board, run_jobs
from sb3_grpo.console import UsageError

# Long enough to be killed in the middle
CONTENT: dict[str, Any] = {
    "name": "tiny",
    "envs": ["CartPole-v1"],
    "variants": [{"algo": "ppo", "hyperparams": {"n_envs": 4, "n_steps": 64}}],
    "seeds": 2,
    "timesteps": 3000,
    "n_evaluations": 2,
    "n_eval_episodes": 1,
    "n_final_episodes": 1,
}


@pytest.fixture
def cluster() -> Iterator[None]:
    """Ray on this machine, with room for two runs."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def is_server(process: psutil.Process | None) -> bool:
    """Whether it forks for runs, or is a run."""
    return process is not None and "multiprocessing.forkserver" in " ".join(process.cmdline())


@pytest.mark.slow
def test_killed_worker_is_replaced(cluster: None, tmp_path: Path) -> None:
    # Long enough for both to learn at the same time, also where one begins some seconds after the other
    experiment = make_experiment(CONTENT | {"timesteps": 20_000}, "test")
    pool = RayPool("auto", None, "cpu")
    killed: list[psutil.Process] = []
    orphans: list[psutil.Process] = []

    class KillOne(Board):
        def update(self, progress: Any) -> None:
            super().update(progress)
            # Once both learn
            if not killed and len(progress) == 2 and all(progress.values()):
                mine = psutil.Process().children(recursive=True)
                servers = [each for each in mine if is_server(each) and not is_server(each.parent()) and each.children()]
                if not servers:
                    return  # its run is just being forked, or has ended
                server = servers[0]
                orphans.extend([server, *server.children()])
                killed.append(server.parent())
                os.kill(killed[0].pid, signal.SIGKILL)

    assert run_jobs(experiment, tmp_path, pool, KillOne(experiment, tmp_path, Console())) == 0
    assert killed and not killed[0].is_running()
    _, alive = psutil.wait_procs(orphans, timeout=20)
    assert not alive, "the run of a dead worker does not go on"
    for seed in range(2):
        folder = tmp_path / "runs" / "CartPole-v1" / "ppo" / str(seed)
        names = {path.name for path in folder.iterdir()}
        clip = {"clip.json", "clip.webp"}
        assert names == clip | {"config.json", "diagnostics.csv", "evaluations.csv", "log.txt", "model.zip", "result.json"}


@pytest.mark.slow
def test_progress_comes_back_after_its_actor_has_died(cluster: None, tmp_path: Path) -> None:
    experiment = make_experiment(CONTENT | {"timesteps": 10_000_000}, "test")
    job = experiment.jobs()[0]
    key = (job.env, job.variant.name, job.seed)
    pool = RayPool("auto", None, "cpu")
    pool.start(key, experiment.settings(job), job.folder(tmp_path))

    def board() -> psutil.Process:
        """The actor's process, once it shows how far the run is."""
        end = time.monotonic() + 180  # Ray's processes start slowly on a busy machine
        while time.monotonic() < end:
            shown = key in pool.progress()
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if shown and child != killed and child.cmdline()[:1] == ["ray::_Board"]:
                        return child
            time.sleep(0.1)
        raise AssertionError

    killed: psutil.Process | None = None
    try:
        killed = board()
        killed.kill()
        assert board() != killed
    finally:
        pool.close()


def test_no_cluster() -> None:
    with pytest.raises(UsageError, match="ray start --head"):
        RayPool("auto", None, "cpu")
