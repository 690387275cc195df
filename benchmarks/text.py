"""
Addition learned from a verifier, over several seeds: ``python -m benchmarks.text --experiment addition_1``.

Every (experiment, variant, seed) runs in its own process with one torch thread, and leaves one JSON file under
``benchmarks/results/text``; runs with a file are skipped. ``python -m benchmarks.pages text`` writes the page.
"""

import argparse
import itertools
import json
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import numpy as np

from benchmarks.blocks import Writers, markdown
from benchmarks.common import RESULTS
from benchmarks.timing import in_process
from sb3_grpo.classroom.compare.findings import interval_text
from sb3_grpo.classroom.compare.statistics import iqm_interval
from sb3_grpo.cli.text import LESSONS, N_ENVS, NETWORK, SETTINGS, WARM_START_BATCH

RUNS = RESULTS / "text"

# Without a critic: the settings of sb3-grpo text, with all of DAPO's changes
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
# Titles, algorithms and settings
VARIANTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "dapo": ("DAPO", "dapo", GROUPS),
    "dapo_without_clip_higher": ("without clip-higher", "dapo", {**GROUPS, "clip_range_high": None}),
    "dapo_without_dynamic_sampling": ("without dynamic sampling", "dapo", {**GROUPS, "dynamic_sampling": False}),
    "dapo_without_step_loss": ("without the loss per step", "dapo", {**GROUPS, "loss_average": "episode"}),
    "dapo_without_overlong_filter": ("without the overlong filter", "dapo", {**GROUPS, "overlong_filter": False}),
    # For comparison with the one above
    "dapo_without_overlong_filter_and_shared_prompts": (
        "without the filter and shared prompts",
        "dapo",
        {**GROUPS, "overlong_filter": False, "unrelated_starts": True},
    ),
    "grpo": ("GRPO", "grpo", {**GROUPS, "overlong_filter": False}),
    "ppo": ("PPO", "ppo", CRITIC),
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

    _, algo, settings = VARIANTS[variant]
    if algo != "ppo":
        setting = EXPERIMENTS[experiment]
        settings = {**settings, **setting["settings"], "learning_rate": setting["learning_rate"]}
    return {**settings, "learning_rate": LinearSchedule(settings["learning_rate"], 0.0, 1.0)}


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
    algo, settings = VARIANTS[variant][1], settings_of(experiment, variant)
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
        "experiment": {"name": experiment, **setting},
        "hyperparameters": {key: str(value) for key, value in {**settings_of(experiment, variant), **NETWORK}.items()},
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
    return [json.loads(path.read_text()) for path in sorted(RUNS.glob(f"{experiment}-{variant}-*.json"))]


def _curves(runs: list[dict[str, Any]], budget: int) -> tuple[np.ndarray, np.ndarray]:
    """
    :param runs: Runs of a variant
    :param budget: Tokens of each
    :return: (points,) tokens, and (runs, points) exact answers there
    """
    grid = np.linspace(0, budget, 101)
    points = [[(point["tokens"], point["exact"]) for point in run["curve"]] for run in runs]
    return grid, np.array([np.interp(grid, *zip(*each, strict=True)) for each in points])


def ablation() -> str:
    """
    :return: A row for each variant of the ablation
    """
    lines = []
    for variant, (title, *_) in VARIANTS.items():
        runs = _load("ablation", variant)
        finals = np.array([run["final"] for run in runs])
        _, values = _curves(runs, EXPERIMENTS["ablation"]["tokens"])
        lasts = [run["curve"][-1] for run in runs]
        cells = [interval_text(iqm_interval([each])) for each in (finals, values.mean(axis=1))]
        lines.append([title, *cells, f"{median(last['seconds'] for last in lasts):.0f}"])
    return markdown(["", "exact at the end", "mean over training", "seconds"], lines)


WRITERS: Writers = {"text_ablation": ablation}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", nargs="+", default=list(EXPERIMENTS), choices=list(EXPERIMENTS))
    parser.add_argument("--variant", nargs="+", default=["dapo_without_overlong_filter"], choices=list(VARIANTS))
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0 to SEEDS-1 (settings were chosen on seeds from 100 on)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--one", nargs=3, metavar=("EXPERIMENT", "VARIANT", "SEED"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    RUNS.mkdir(parents=True, exist_ok=True)
    if args.one:
        experiment, variant, seed = args.one
        result = run(experiment, variant, int(seed))
        (RUNS / f"{experiment}-{variant}-{seed}.json").write_text(json.dumps(result) + "\n")
        print("{}")
        return

    from tqdm import tqdm

    todo = [
        (experiment, variant, seed)
        for experiment, seed, variant in itertools.product(args.experiment, range(args.seeds), args.variant)
        if not (RUNS / f"{experiment}-{variant}-{seed}.json").exists()
    ]
    with ThreadPoolExecutor(args.jobs) as pool, tqdm(total=len(todo), desc="runs") as bar:
        for _ in pool.map(lambda one: in_process("benchmarks.text", "--one", *one), todo):
            bar.update()


if __name__ == "__main__":
    main()
