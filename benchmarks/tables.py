"""Tables and curves of comparisons (``sb3-grpo compare``), from their packed results in ``benchmarks/results``."""

from functools import cache

import numpy as np

from benchmarks.blocks import Writers, markdown, picture, steps_text, task_name
from benchmarks.common import RESULTS
from benchmarks.figures import draw_curves, label
from sb3_grpo.classroom.compare.collect import collect
from sb3_grpo.classroom.compare.findings import interval_text
from sb3_grpo.classroom.compare.results import Results
from sb3_grpo.classroom.compare.statistics import compare, iqm_curve, iqm_interval

SUITES = {"classroom": "classic control and LunarLander", "minatar": "MinAtar", "atari": "Atari"}


@cache
def comparison(name: str) -> Results:
    """
    :param name: A folder in ``benchmarks/results``
    :return: The comparison
    """
    return collect(RESULTS / name)


def scores(found: Results, env: str, variant: str) -> np.ndarray:
    """
    :param found: A comparison
    :param env: One of its environments
    :param variant: One of its variants
    :return: (n,) mean final return of each run, in the evaluations that count
    """
    return found.final_scores(env, variant, found.main_mode(env))


def seeds(found: Results, envs: list[str], variants: list[str]) -> list[int]:
    """
    :param found: A comparison
    :param envs: Some of its environments
    :param variants: Some of its variants
    :return: How many seeds a variant has on an environment: the fewest and the most, or one number if all have as many
    """
    numbers = {len(found.done(env, variant)) for env in envs for variant in variants} - {0}
    return sorted({min(numbers), max(numbers)})


def kind(found: Results) -> str:
    """
    :param found: A comparison
    :return: Kind of the evaluations that its scores come from
    """
    sampled = [env for env in found.envs if found.main_mode(env) == "stochastic"]
    if len(sampled) == len(found.envs):
        return "stochastic"
    return f"deterministic (on {', '.join(sampled)}: stochastic)" if sampled else "deterministic"


def curves(image: str, name: str, envs: str = "", variants: str = "") -> str:
    """
    :param image: Name of the picture
    :param name: A folder in ``benchmarks/results``
    :param envs: Only these, with commas
    :param variants: Only these, with commas
    :return: Learning curves
    """
    found = comparison(name)
    shown = [env for env in found.envs if env in envs.split(",") or not envs]
    names = [variant for variant in found.variants if variant in variants.split(",") or not variants]
    drawn = {}
    for variant in names:
        returns = {env: found.curves(env, variant, found.main_mode(env)) for env in shown}
        drawn[variant] = [
            (found.grid(env, found.main_mode(env)), iqm_curve(each)) if each.size else None for env, each in returns.items()
        ]
    titles = [task_name(env) for env in shown]
    draw_curves(image, titles, drawn)
    n_seeds = seeds(found, shown, names)
    interval = ", with its 95% bootstrap interval" if max(n_seeds) > 2 else ""
    caption = f"{' to '.join(map(str, n_seeds))} seeds: IQM of {kind(found)} evaluations during training{interval}."
    return picture(image, f"Return over steps of {', '.join(map(label, names))} on {', '.join(titles)}", caption)


def finals(*names: str) -> str:
    """
    :param names: Folders in ``benchmarks/results``
    :return: A row for each environment and budget, a column for each variant, with the IQM of its final scores
    """
    found = [comparison(name) for name in names]
    variants = list(dict.fromkeys(variant for each in found for variant in each.variants))
    tasks: dict[tuple[str, int], dict[str, Results]] = {}
    for each in found:
        for env in each.envs:
            tasks.setdefault((env, each.experiment["timesteps"][env]), {}).update(dict.fromkeys(each.variants, each))
    rows = []
    for (env, budget), of in tasks.items():
        samples = {variant: scores(each, env, variant) for variant, each in of.items()}
        cells = [interval_text(iqm_interval([samples[each]])) if len(samples.get(each, ())) else "" for each in variants]
        rows.append([f"{task_name(env)}, {steps_text(budget)}", *cells])
    numbers = [n for each in found for n in seeds(each, each.envs, each.variants)]
    episodes = {f"{each.experiment['n_final_episodes']} {kind(each)}" for each in found}
    spread = "IQM and its 95% interval" if max(numbers) > 2 else "mean over the seeds"
    return (
        f"{markdown(['', *map(label, variants)], rows)}\n\n*Mean return of {' or '.join(sorted(episodes))} episodes after "
        f"training: {spread}; {' to '.join(map(str, sorted({min(numbers), max(numbers)})))} seeds.*"
    )


def pairs(*names: str) -> str:
    """
    :param names: Folders in ``benchmarks/results``
    :return: A row for the tasks of each of them together, a column for GRPO and one for DAPO
    """
    rows = []
    for name in names:
        found = comparison(name)
        samples = {each: [scores(found, env, each) for env in found.envs] for each in ("grpo", "dapo", "ppo")}
        cells = [compare(each, "ppo", samples[each], samples["ppo"]).improvement for each in ("grpo", "dapo")]
        n_seeds = " to ".join(map(str, seeds(found, found.envs, [*samples])))
        rows.append([f"{SUITES[name]}, {len(found.envs)} tasks", n_seeds, *(interval_text(cell, 1.0) for cell in cells)])
    return (
        f"{markdown(['', 'seeds', 'GRPO', 'DAPO'], rows)}\n\n*Probability that a run ends above one of PPO at equal steps, "
        f"mean over the tasks, and its 95% interval.*"
    )


WRITERS: Writers = {"curves": curves, "finals": finals, "pairs": pairs}
