"""
What a search with RL Zoo finds: ``python -m benchmarks.tuning`` (resumes; ``--tasks``, ``--algos``).

For each task and algorithm, the study that a user would start: 40 trials, of which the first has the defaults, and median
pruning. Then what a careful user would do: the defaults and the three best other trials are trained on three other seeds, and
the one with the highest mean is chosen. The best trial, the chosen one and the defaults are trained on seeds that nothing has
seen, with as many steps, and evaluated in 100 episodes.

PPO has 16 copies, too, and RL Zoo's ``normalize`` where RL Zoo has it.

Studies are journals in ``--folder``; one that was interrupted goes on. ``benchmarks/results/tuning`` has their trials
(``TASK-ALGO.csv``) and the trainings (``checks.jsonl``), ``former`` those of the search space before.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import optuna
import pandas as pd
import yaml
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import TrialState, create_trial

from benchmarks import common
from benchmarks.blocks import Writers, markdown
from benchmarks.figures import figure_of, style
from benchmarks.runs import Job, run_missing
from sb3_grpo.classroom.compare.findings import interval_text
from sb3_grpo.classroom.compare.statistics import compare, iqm

RESULTS = common.RESULTS / "tuning"
CHECKS = "checks.jsonl"
ALGOS = ("grpo", "dapo", "ppo")
N_TRIALS, N_COPIES, N_EPISODES = 40, 16, 100
SEARCH_SEED, CHOICE_SEEDS, SEEDS = 100, range(210, 213), range(200, 205)
# Four evaluations of 20 episodes in each trial
SEARCH = ("--n-evaluations", 4, "--eval-episodes", 20, "--n-eval-envs", 10, "--no-optim-plots")


class Task(NamedTuple):
    """
    :param steps: Steps of a trial, and of a training with what was found
    :param ppo: What PPO's entry has in addition
    :param package: What registers it, if it is not Gymnasium
    """

    steps: int
    ppo: Mapping[str, Any] = MappingProxyType({})
    package: str | None = None


TASKS = {
    "LunarLander-v3": Task(100_000),
    "Hopper-v5": Task(100_000, {"normalize": True}),
    "MinAtar/Breakout-v1": Task(150_000, package="sb3_grpo.envs.minatar"),
    "BipedalWalker-v3": Task(150_000, {"normalize": True}),
}


def study_name(task: str, algo: str) -> str:
    """
    :param task: One of ``TASKS``
    :param algo: One of ``ALGOS``
    :return: Name of the study, and of its files
    """
    return f"{task.replace('/', '-')}-{algo}"


def zoo(
    name: str, algo: str, env: str, entry: dict[str, Any], folder: Path, logs: Path, *options: Any, package: str | None = None
) -> None:
    """
    Run RL Zoo's ``train`` in a process of its own.

    :param name: Name of its files
    :param algo: Name of the algorithm
    :param env: id of the environment
    :param entry: Its hyperparameters, in RL Zoo's format
    :param folder: Where its configuration and its output go
    :param logs: Where its results go
    :param options: More options
    :param package: What registers the environment, if it is not Gymnasium
    """
    config = folder / f"{name}.yml"
    config.write_text(yaml.safe_dump({env: entry}))
    command = ["-m", "sb3_grpo.zoo", "train", "--algo", algo, "--env", env, "--conf-file", config, "-f", logs, *options]
    command += ["--gym-packages", package] if package else []
    with (folder / f"{name}.txt").open("a") as output:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", *map(str, command), "--num-threads", "1"],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    if done.returncode != 0:
        raise RuntimeError(f"{name}: see {output.name}")


def final_return(logs: Path) -> float:
    """
    :param logs: Results of a training with a single evaluation
    :return: Its mean return. The results are removed
    """
    [path] = logs.glob("*/*/evaluations.npz")
    mean = float(np.load(path)["results"][0].mean())
    shutil.rmtree(logs)
    return mean


def run_study(task: str, algo: str, folder: Path, logs: Path, *options: Any) -> None:
    """
    Run RL Zoo with a study, and with an entry that sets only what every entry sets.

    :param task: One of ``TASKS``
    :param algo: One of ``ALGOS``
    :param folder: Folder of the studies
    :param logs: Where its output goes
    :param options: More options
    """
    name, (steps, ppo, package) = study_name(task, algo), TASKS[task]
    entry = {"n_envs": N_COPIES, "n_timesteps": steps, "policy": "MlpPolicy", **(ppo if algo == "ppo" else {})}
    study = ("--storage", folder / f"{name}.log", "--study-name", name, "-n", steps)
    zoo(name, algo, task, entry, folder, logs, *study, *options, package=package)


def search(task: str, algo: str, folder: Path) -> None:
    """
    Run what is missing of a study, and write the table of its trials.

    :param task: One of ``TASKS``
    :param algo: One of ``ALGOS``
    :param folder: Folder of the studies
    """
    options = ("--optimize", "--max-total-trials", N_TRIALS, "--seed", SEARCH_SEED, *SEARCH)
    run_study(task, algo, folder, folder / "reports", *options)
    name = study_name(task, algo)
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder / f"{name}.log")))
    study = optuna.load_study(study_name=name, storage=storage)
    table = study.trials_dataframe(("number", "value", "state", "duration", "params"))
    table["duration"] = table["duration"].dt.total_seconds().round()
    table.to_csv(RESULTS / f"{name}.csv", index=False, float_format="%.6g")
    importances(study).to_csv(RESULTS / f"{name}-importance.csv", float_format="%.6g")


def importances(study: optuna.Study, n_shuffles: int = 200) -> pd.DataFrame:
    """
    How much the best quarter of the completed trials differs from the others in each parameter (PED-ANOVA), and how much it
    would by chance: in 5% of the studies whose values are shuffled, the importance is above.

    :param study: A study
    :param n_shuffles: Number of shuffled studies
    :return: Importance and chance of each parameter
    """
    evaluator = PedAnovaImportanceEvaluator(target_quantile=0.25)
    complete = [trial for trial in study.trials if trial.state is TrialState.COMPLETE]
    rng, shuffled = np.random.default_rng(0), []
    for _ in range(n_shuffles):
        other = optuna.create_study(direction="maximize")
        values = rng.permutation([trial.value for trial in complete])
        for trial, value in zip(complete, values, strict=True):
            other.add_trial(create_trial(params=trial.params, distributions=trial.distributions, value=float(value)))
        shuffled.append(evaluator.evaluate(other))
    found = {"importance": pd.Series(evaluator.evaluate(study)), "chance": pd.DataFrame(shuffled).quantile(0.95)}
    return pd.DataFrame(found).rename_axis("parameter").sort_values("importance", ascending=False)


def trials(task: str, algo: str, results: Path = RESULTS) -> pd.DataFrame | None:
    """
    :param task: One of ``TASKS``
    :param algo: One of ``ALGOS``
    :param results: Folder with the table
    :return: The trials of the study, if it has ended
    """
    path = results / f"{study_name(task, algo)}.csv"
    return pd.read_csv(path) if path.exists() else None


def best(study: pd.DataFrame | None, n: int = 1) -> pd.DataFrame:
    """
    :param study: The trials of a study
    :param n: How many
    :return: The best trials, the best first
    """
    assert study is not None
    return study[study.state == "COMPLETE"].nlargest(n, "value")


def check(task: str, algo: str, trial: int, seed: int, folder: Path) -> dict[str, Any]:
    """
    :param task: One of ``TASKS``
    :param algo: One of ``ALGOS``
    :param trial: A trial of its study
    :param seed: Seed of the training
    :param folder: Folder of the studies
    :return: Mean return after as many steps as a trial has
    """
    logs = folder / f"check-{study_name(task, algo)}-{trial}-{seed}"
    shutil.rmtree(logs, ignore_errors=True)
    evaluation = ("--eval-freq", TASKS[task].steps, "--eval-episodes", N_EPISODES, "--n-eval-envs", 10)
    run_study(task, algo, folder, logs, "--trial-id", trial, "--seed", seed, *evaluation)
    return {"mean_return": final_return(logs)}


def finalists(task: str, algo: str) -> list[int]:
    """
    :param task: One of ``TASKS``
    :param algo: One of ``ALGOS``
    :return: The first trial of the study, which has the defaults, and the three best of the others
    """
    study = trials(task, algo)
    assert study is not None
    return [0, *sorted(map(int, best(study[study.number > 0], 3).number))]


def compared(task: str, algo: str) -> list[int]:
    """
    :param task: One of ``TASKS``
    :param algo: One of ``ALGOS``
    :return: The trials that are compared at the end: the first, the best, and the chosen one
    """
    choice = chosen(checks_of(task, algo))
    assert choice is not None
    return sorted({0, int(best(trials(task, algo)).number.iloc[0]), choice})


def returns(checks: pd.DataFrame, trial: int, seeds: Sequence[int]) -> np.ndarray:
    """
    :param checks: Trainings of a study's trials
    :param trial: A trial
    :param seeds: Seeds
    :return: Mean returns of the trial with these seeds
    """
    return checks[(checks.trial == trial) & checks.seed.isin(seeds)].mean_return.to_numpy()


def chosen(checks: pd.DataFrame) -> int | None:
    """
    :param checks: Trainings of a study's trials
    :return: The trial with the highest mean on the seeds of the choice, if there are any
    """
    trained = checks[checks.seed.isin(CHOICE_SEEDS)]
    return None if trained.empty else int(trained.groupby("trial").mean_return.mean().idxmax())


def checks_of(task: str, algo: str, results: Path = RESULTS) -> pd.DataFrame:
    """
    :param task: One of ``TASKS``
    :param algo: One of ``ALGOS``
    :param results: Folder with the results
    :return: Trainings of the study's trials
    """
    found = pd.DataFrame(common.rows(results / CHECKS), columns=["task", "algo", "trial", "seed", "mean_return"])
    return found[(found.task == task) & (found.algo == algo)]


def table(space: str = "") -> str:
    """
    :param space: Name of a former search space
    :return: What each study has found, as a table in Markdown
    """
    lines, results = [], RESULTS / space
    for task, algo in product(TASKS, ALGOS):
        study = trials(task, algo, results)
        if study is None:
            continue
        checks, number = checks_of(task, algo, results), int(best(study).number.iloc[0])
        before = returns(checks, 0, SEEDS)
        ends = [f"{iqm(before):.4g}" if len(before) else ""]
        for trial in (number, chosen(checks)):
            after = before if trial is None else returns(checks, trial, SEEDS)
            if trial in (0, None) or not len(before) == len(after) == len(SEEDS):
                ends.append("the defaults" if trial == 0 else "")
                continue
            above = compare("trial", "defaults", [after], [before]).improvement
            ends.append(f"{iqm(after):.4g}, {interval_text(above)}")
        # An interrupted trial is repeated
        seconds = study.duration[study.state != "FAIL"].sum()
        searched = [f"{seconds / 60:.0f}", f"{best(study, 5).value.mean():.4g}"]
        lines.append([f"{task}, {algo.upper()}", *searched, *ends])
    columns = ["study", "minutes", "five best trials", "defaults", "best trial", "chosen"]
    return markdown(columns, lines)


def importance() -> str:
    """
    :return: The picture of the importances in all studies, relative to what chance gives, in Markdown
    """
    found = {}
    for task, algo in product(TASKS, ALGOS):
        path = RESULTS / f"{study_name(task, algo)}-importance.csv"
        if path.exists():
            each = pd.read_csv(path, index_col="parameter")
            found[task, algo] = each.importance / each.chance
    studies = pd.DataFrame(found).rename(index={"unit": "n_steps or not"})
    studies = studies.rename(index=lambda name: name.removesuffix("_pow").removeprefix("one_minus_"))
    studies = studies.loc[studies.max(axis=1).sort_values().index]
    places = np.arange(len(studies))
    markers, colours = dict(zip(TASKS, "osD^", strict=True)), {algo: style(algo, ALGOS)["color"] for algo in ALGOS}
    with figure_of("importance", figsize=(3.8, 0.25 * len(studies) + 1.5)) as (figure, axes):
        for task, algo in found:
            axes.plot(studies[task, algo], places, markers[task], color=colours[algo], markersize=5, alpha=0.8)
        for task, marker in markers.items():
            axes.plot([], [], marker, color="grey", label=task.removeprefix("MinAtar/"), markersize=5)
        for algo, colour in colours.items():
            axes.plot([], [], color=colour, label=algo.upper(), linewidth=4)
        axes.axvline(1, color="k", linestyle="--", linewidth=1)
        axes.set_yticks(places, studies.index)
        axes.set_xlim(left=0)
        axes.set_xlabel("importance / chance")
        axes.grid(alpha=0.3)
        figure.legend(loc="outside upper center", ncols=2, frameon=False, columnspacing=1, handlelength=1, handletextpad=0.5)
    alt = f"Importance of the hyperparameters relative to chance, in {len(found)} studies"
    ratios = pd.concat(found.values())
    caption = (
        "PED-ANOVA of the completed trials. Chance: the 95th percentile of studies whose results are shuffled. Of "
        f"{len(ratios)} importances, {(ratios > 1).sum()} are above it; {0.05 * len(ratios):.0f} would be by chance"
    )
    return f"![{alt}](images/importance.svg){{.picture}}\n\n*{caption}.*"


WRITERS: Writers = {"studies": table, "importance": importance}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("studies"))
    parser.add_argument("--tasks", nargs="+", default=[*TASKS], choices=[*TASKS])
    parser.add_argument("--algos", nargs="+", default=[*ALGOS], choices=ALGOS)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    # Not a line for each shuffled study
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    args.folder.mkdir(parents=True, exist_ok=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for task in args.tasks:
        missing = [algo for algo in args.algos if trials(task, algo) is None]
        with ThreadPoolExecutor(args.processes) as pool:
            list(pool.map(lambda algo, task=task: search(task, algo, args.folder), missing))
        for wanted, seeds in (finalists, CHOICE_SEEDS), (compared, SEEDS):
            jobs: list[Job] = [
                {"task": task, "algo": algo, "trial": trial, "seed": seed}
                for seed in seeds
                for algo in args.algos
                for trial in wanted(task, algo)
            ]
            run_missing(RESULTS / CHECKS, jobs, lambda job: check(**job, folder=args.folder.resolve()), args.processes)


if __name__ == "__main__":
    main()
