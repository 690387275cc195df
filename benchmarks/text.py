"""
Addition learned from a verifier, over several seeds: ``python -m benchmarks.text --experiment addition_1``.

Every (experiment, variant, seed) runs in its own process with one torch thread, and leaves one JSON file under
``benchmarks/results/text``; runs with a file are skipped. ``--report`` only reads the files.
"""

import argparse
import itertools
import json
import math
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from sb3_grpo.cli.text import LESSONS, N_ENVS, NETWORK, SETTINGS, WARM_START_BATCH

RUNS = Path(__file__).resolve().parent / "results" / "text"

# Without a critic: the settings of python -m sb3_grpo text, with all of DAPO's changes
GROUPS: dict[str, Any] = {**SETTINGS, "overlong_filter": True}
# About as many tokens per update and per minibatch
CRITIC: dict[str, Any] = {
    "n_steps": 5,
    "batch_size": 512,
    "n_epochs": 4,
    "learning_rate": 1e-3,
    "gamma": 1.0,
    "gae_lambda": 0.95,
    "ent_coef": 0.05,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "dapo": ("dapo", GROUPS),
    "dapo_without_clip_higher": ("dapo", {**GROUPS, "clip_range_high": None}),
    "dapo_without_dynamic_sampling": ("dapo", {**GROUPS, "dynamic_sampling": False}),
    "dapo_without_step_loss": ("dapo", {**GROUPS, "loss_average": "episode"}),
    "dapo_without_overlong_filter": ("dapo", {**GROUPS, "overlong_filter": False}),
    # For comparison with the one above
    "dapo_without_overlong_filter_and_shared_prompts": (
        "dapo",
        {**GROUPS, "overlong_filter": False, "unrelated_starts": True},
    ),
    "grpo": ("grpo", {**GROUPS, "overlong_filter": False}),
    "ppo": ("ppo", CRITIC),
}
# The first three are to be solved, and more often draw prompts that are still answered wrongly (HardPrompts).
# The last compares the algorithms on uniformly drawn prompts.
EXPERIMENTS: dict[str, dict[str, Any]] = {
    **{
        f"addition_{digits}": {
            "digits": digits,
            "n_test": lesson.n_test,
            "n_examples": lesson.examples,
            "n_epochs": lesson.passes,
            "tokens": lesson.timesteps,
            "settings": lesson.settings,
            "learning_rate": lesson.learning_rate,
            "hard": True,
        }
        for digits, lesson in LESSONS.items()
    },
    "from_nothing": {
        "digits": 1,
        "zero_pad": True,
        "tokens": 6_000_000,
        "settings": {**LESSONS[1].settings, "ent_coef": 0.05},
        "learning_rate": 1e-3,
        "hard": True,
    },
    "ablation": {
        "digits": 1,
        "n_examples": 100,
        "n_epochs": 20,
        "tokens": 400_000,
        "settings": LESSONS[1].settings,
        "learning_rate": 5e-4,
        "hard": False,
    },
}
N_POINTS = 50


def settings_of(experiment: str, variant: str) -> dict[str, Any]:
    """
    :param experiment: One of ``EXPERIMENTS``
    :param variant: One of ``VARIANTS``
    :return: The hyperparameters
    """
    from stable_baselines3.common.utils import LinearSchedule

    algo, settings = VARIANTS[variant]
    if algo != "ppo":
        setting = EXPERIMENTS[experiment]
        settings = {**settings, **setting["settings"], "learning_rate": setting["learning_rate"]}
    return {**settings, "learning_rate": LinearSchedule(settings["learning_rate"], 0.0, 1.0)}


def describe(experiment: str, variant: str) -> dict[str, Any]:
    """
    :param experiment: One of ``EXPERIMENTS``
    :param variant: One of ``VARIANTS``
    :return: What is stored with its results, as read from a file
    """
    settings = {key: str(value) for key, value in {**settings_of(experiment, variant), **NETWORK}.items()}
    noted = {"experiment": {"name": experiment, **EXPERIMENTS[experiment]}, "hyperparameters": settings}
    return json.loads(json.dumps(noted))


def run(experiment: str, variant: str, seed: int) -> dict[str, Any]:
    """
    Train once.

    :param experiment: One of ``EXPERIMENTS``
    :param variant: One of ``VARIANTS``
    :param seed: Random seed
    :return: Exact answers (greedy) on all test prompts over time, with entropy and dead groups
    """
    import torch as th
    from stable_baselines3.common.callbacks import BaseCallback

    from benchmarks.common import algorithm, command, machine
    from sb3_grpo.envs import ArithmeticTask, HardPrompts, VerifierTextVecEnv
    from sb3_grpo.text.policies import TokenActorCriticPolicy, TokenPolicy

    th.set_num_threads(1)
    setting = EXPERIMENTS[experiment]
    numbers = {"digits": setting["digits"], "n_test": setting.get("n_test", 0), "zero_pad": setting.get("zero_pad", False)}
    training = ArithmeticTask(**numbers, split="train" if setting.get("n_test") else "all")
    testing = ArithmeticTask(**numbers, split="test" if setting.get("n_test") else "all")
    items = [testing.item(index) for index in range(testing.n_items)]
    # Room for one token more than the longest answer
    algo, settings = VARIANTS[variant][0], settings_of(experiment, variant)
    room = setting["digits"] + 3
    env = VerifierTextVecEnv(N_ENVS, seed=seed, task=training, max_answer_tokens=room, truncate=algo != "ppo")
    if setting["hard"]:
        settings["start_sampler"] = HardPrompts(training.n_items)
    policy_class = TokenActorCriticPolicy if algo == "ppo" else TokenPolicy
    model = algorithm(algo)(policy_class, env, seed=seed, device="cpu", policy_kwargs=NETWORK, **settings)
    policy: Any = model.policy
    begin = time.perf_counter()
    losses = []
    if setting.get("n_examples"):
        examples = training.worked_examples(setting["n_examples"], seed=seed)
        losses = policy.pretrain(examples, n_epochs=setting["n_epochs"], batch_size=WARM_START_BATCH).losses
    warm_start_seconds = time.perf_counter() - begin

    class Curve(BaseCallback):
        """Evaluate regularly. The time this takes does not count."""

        def __init__(self) -> None:
            super().__init__()
            self.points: list[dict[str, float]] = []
            self.evaluating = 0.0
            self.begin = time.perf_counter()
            self.dead_fraction: float | None = None

        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            if self.num_timesteps >= len(self.points) * setting["tokens"] / N_POINTS:
                self.evaluate()

        def _on_rollout_end(self) -> None:
            # Only now: after the rollout has been reported, it is gone from the logger
            self.dead_fraction = self.model.logger.name_to_value.get("group/dead_fraction")

        def evaluate(self) -> float:
            now = time.perf_counter()
            seconds = warm_start_seconds + now - self.begin - self.evaluating
            answers = policy.generate([item.prompt for item in items])
            exact = float(np.mean([answer == item.answer for answer, item in zip(answers, items, strict=True)]))
            point = {"seconds": seconds, "tokens": self.num_timesteps, "exact": exact}
            if self.points:
                # PPO does not log the entropy, but a loss that is its negative
                values = self.model.logger.name_to_value
                point["entropy"] = float(values.get("train/entropy", -values.get("train/entropy_loss", float("nan"))))
                if self.dead_fraction is not None:
                    point["dead_fraction"] = float(self.dead_fraction)
                point["length"] = float(np.mean([info["l"] for info in self.model.ep_info_buffer or []]))
            self.points.append(point)
            self.evaluating += time.perf_counter() - now
            return exact

    curve = Curve()
    model.learn(setting["tokens"], callback=curve)
    return {
        **describe(experiment, variant),
        "variant": variant,
        "algo": algo,
        "seed": seed,
        "n_envs": N_ENVS,
        "warm_start": {"seconds": warm_start_seconds, "loss": losses},
        "final": curve.evaluate(),
        "tokens": model.num_timesteps,
        "curve": curve.points,
        "command": command(),
        "machine": machine(),
    }


def _load(experiment: str, variant: str) -> list[dict[str, Any]]:
    runs, now = [], describe(experiment, variant)
    for path in sorted(RUNS.glob(f"{experiment}-{variant}-*.json")):
        runs.append(json.loads(path.read_text()))
        if any(runs[-1][key] != value for key, value in now.items()):
            raise SystemExit(f"{path.name} was made with other settings than those of now: delete it, and run it again")
    return runs


def _curves(experiment: str, runs: list[dict[str, Any]], key: str) -> tuple[np.ndarray, np.ndarray]:
    """
    :param experiment: One of ``EXPERIMENTS``
    :param runs: Runs of the experiment
    :param key: Key in the points of their curves
    :return: (points,) tokens, and (runs, points) values of each run there
    """
    grid = np.linspace(0, EXPERIMENTS[experiment]["tokens"], 101)
    points = [[(p["tokens"], p[key]) for p in result["curve"] if key in p] for result in runs]
    return grid, np.array([np.interp(grid, *zip(*each, strict=True)) for each in points])


def draw() -> None:
    """Learning curves of the ablation, with entropy and dead groups: ``ablation.png``."""
    import matplotlib.pyplot as plt

    from sb3_grpo.classroom.compare.statistics import iqm_curve

    quantities = {"exact": "exact answers", "entropy": "entropy (nats)", "dead_fraction": "dead groups"}
    figure, axes = plt.subplots(1, 3, figsize=(16, 5), layout="constrained")
    colours = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#999999", "#E69F00", "#56B4E9")
    for variant, colour in zip(VARIANTS, colours, strict=True):
        runs = _load("ablation", variant)
        for axis, (key, label) in zip(axes, quantities.items(), strict=True):
            axis.set(xlabel="thousand tokens", ylabel=label)
            if not runs or (variant == "ppo" and key == "dead_fraction"):
                continue
            tokens, values = _curves("ablation", runs, key)
            thousands = tokens / 1000
            if len(runs) >= 3:
                band = iqm_curve(values)
                axis.fill_between(thousands, band.low, band.high, color=colour, alpha=0.15, linewidth=0)
                values = band.value[None]
            axis.plot(thousands, values.mean(axis=0), color=colour, label=variant.replace("_", " ").replace("without", "less"))
    axes[0].legend(fontsize="small")
    figure.savefig(RUNS / "ablation.png", dpi=110)


def summarise() -> list[dict[str, Any]]:
    """
    Summarise all existing runs.

    :return: A row for each (experiment, variant)
    """
    from sb3_grpo.classroom.compare.statistics import iqm_interval

    rows = []
    for experiment, variant in itertools.product(EXPERIMENTS, VARIANTS):
        runs = _load(experiment, variant)
        if not runs:
            continue
        finals = np.array([result["final"] for result in runs])
        _, curves = _curves(experiment, runs, "exact")
        target = 0.99 if EXPERIMENTS[experiment]["digits"] == 1 else 0.95
        reached = [next((p["seconds"] for p in result["curve"] if p["exact"] >= target), None) for result in runs]
        lasts = [result["curve"][-1] for result in runs]
        row: dict[str, Any] = {
            "experiment": experiment,
            "variant": variant,
            "seeds": [result["seed"] for result in runs],
            "final": finals.round(3).tolist(),
            "target": target,
            "seconds_to_target": [None if each is None else round(each, 1) for each in reached],
            "seconds": [round(last["seconds"], 1) for last in lasts],
            "mean_over_tokens": curves.mean(axis=1).round(3).tolist(),
            "last_entropy": [_rounded(last["entropy"], 3) for last in lasts],
            "last_dead_fraction": [_rounded(last["dead_fraction"], 2) for last in lasts if "dead_fraction" in last],
        }
        if len(runs) >= 3:
            row["iqm_and_interval"] = [round(value, 3) for value in iqm_interval([finals])]
            row["mean_over_tokens_iqm_and_interval"] = [round(value, 3) for value in iqm_interval([curves.mean(axis=1)])]
        rows.append(row)
    return rows


def _rounded(value: float, digits: int) -> float | None:
    return None if math.isnan(value) else round(value, digits)


def report() -> None:
    """Print a table, and write ``summary.json`` and a figure."""
    rows = summarise()
    for row in rows:
        about = f"{row['final']} target after {row['seconds_to_target']} s of {row['seconds']}"
        print(f"{row['experiment']} {row['variant']:30} {about}")
    (RUNS / "summary.json").write_text(json.dumps(rows, indent=1, allow_nan=False) + "\n")
    draw()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", nargs="+", default=list(EXPERIMENTS), choices=list(EXPERIMENTS))
    parser.add_argument("--variant", nargs="+", default=["dapo_without_overlong_filter"], choices=list(VARIANTS))
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0 to SEEDS-1 (settings were chosen on seeds from 100 on)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--report", action="store_true", help="only summarise what is there")
    parser.add_argument("--one", nargs=3, metavar=("EXPERIMENT", "VARIANT", "SEED"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    RUNS.mkdir(parents=True, exist_ok=True)
    if args.one:
        experiment, variant, seed = args.one
        result = run(experiment, variant, int(seed))
        (RUNS / f"{experiment}-{variant}-{seed}.json").write_text(json.dumps(result) + "\n")
        return
    if not args.report:
        from tqdm import tqdm

        for experiment, variant in itertools.product(args.experiment, args.variant):
            _load(experiment, variant)  # refuses runs that do not belong together
        todo = [
            (experiment, variant, str(seed))
            for experiment, seed, variant in itertools.product(args.experiment, range(args.seeds), args.variant)
            if not (RUNS / f"{experiment}-{variant}-{seed}.json").exists()
        ]
        start = [sys.executable, "-m", "benchmarks.text", "--one"]
        with ThreadPoolExecutor(args.jobs) as pool, tqdm(total=len(todo), desc="runs") as bar:
            for _ in pool.map(lambda one: subprocess.run([*start, *one], check=True, cwd=RUNS.parents[2]), todo):
                bar.update()
    report()


if __name__ == "__main__":
    main()
