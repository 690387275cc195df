"""The tables and pictures of ``docs/guide/masks.md`` and ``memory.md``: ``python -m benchmarks.pages masks memory``."""

from collections import defaultdict
from typing import Any

import numpy as np

from benchmarks.blocks import Writers, markdown, picture, steps_text
from benchmarks.common import rows
from benchmarks.figures import draw_curves, label
from benchmarks.masks_memory.run import RESULTS, SEEDS, SPEED_TASKS, SPEEDS, VARIANTS
from benchmarks.masks_memory.tasks import TASKS
from sb3_grpo.classroom.compare.findings import interval_text
from sb3_grpo.classroom.compare.statistics import iqm_curve, iqm_interval

NAMES = {
    "maskable_ppo": "MaskablePPO",
    "recurrent_ppo": "RecurrentPPO",
    "recurrent_ppo_shared": "RecurrentPPO, one LSTM",
    "dapo_masks": "DAPO, masks alone",
    "dapo_memory": "DAPO, memory alone",
    "dapo_aux": "DAPO, auxiliary value loss",
}


def _name(variant: str) -> str:
    return NAMES.get(variant, label(variant))


def _runs() -> dict[tuple[str, str], list[dict[str, Any]]]:
    runs = defaultdict(list)
    for row in sorted(rows(RESULTS), key=lambda each: each["seed"]):
        runs[row["task"], row["variant"]].append(row)
    return runs


def curves(needs: str) -> str:
    """
    :param needs: Masks, memory, or both
    :return: A picture with the curves of the tasks that need it
    """
    runs = _runs()
    tasks = [task for task, each in TASKS.items() if each.needs == needs and len(runs[task, "dapo"]) == SEEDS]
    drawn: dict[str, list[Any]] = {}
    for variant in VARIANTS[needs]:
        of_tasks: list[Any] = []
        for task in tasks:
            found = runs.get((task, variant), [])
            steps = np.linspace(0, TASKS[task].timesteps, 41)[1:]
            values = [np.interp(steps, run["steps"], run["returns"]) for run in found]
            of_tasks.append((steps, iqm_curve(np.array(values))) if values else None)
        if any(of_tasks):
            drawn[variant if variant in ("dapo", "grpo") else NAMES[variant]] = of_tasks
    name = f"needs_{needs}"
    draw_curves(name, [task.removeprefix("InvalidActionEnv") for task in tasks], drawn)
    return picture(name, "Learning curves", "Return of episodes with sampled actions: IQM of five seeds and its 95% interval.")


def at_seconds(run: dict[str, Any], seconds: float) -> float:
    """
    :param run: A run
    :param seconds: CPU seconds
    :return: Its return at that time
    """
    return float(np.interp(seconds, run["seconds"], run["returns"]))


def returns(needs: str) -> str:
    """
    :param needs: Masks, memory, or both
    :return: A row for each task and variant: returns at equal steps, and when DAPO was done
    """
    runs, lines = _runs(), []
    for task, each in TASKS.items():
        ours = runs.get((task, "dapo"))
        if each.needs != needs or not ours:
            continue
        seconds = float(np.median([run["seconds"][-1] for run in ours]))
        for variant in VARIANTS[needs]:
            found = runs.get((task, variant), [])
            if not found:
                continue
            finals = iqm_interval([np.array([run["returns"][-1] for run in found])])
            at_once = iqm_interval([np.array([at_seconds(run, seconds) for run in found])])
            rate = np.median([run["steps"][-1] / run["seconds"][-1] for run in found])
            cells = [interval_text(finals), "" if variant == "dapo" else interval_text(at_once), f"{rate:,.0f}"]
            lines.append([f"{task}, {steps_text(each.timesteps)}", _name(variant), str(len(found)), *cells])
    columns = ["", "", "seeds", "return", "when DAPO was done", "steps per CPU second"]
    return markdown(columns, lines)


def rates(task: str) -> str:
    """
    :param task: Name of a task
    :return: Steps per second of all variants in turn, and the median of the ratios
    """
    found = [row["rates"] for row in rows(SPEEDS) if row["task"] == task]
    lines = []
    for variant in SPEED_TASKS[task]:
        ratio = np.median([each["dapo"] / each[variant] for each in found])
        rate = f"{np.median([each[variant] for each in found]):,.0f}"
        lines.append([_name(variant), rate, "" if variant == "dapo" else f"{ratio:.1f}"])
    return markdown([f"{task}, in turn", "steps per CPU second", "times as many: DAPO"], lines)


WRITERS: Writers = {"masks_memory_curves": curves, "masks_memory_returns": returns, "masks_memory_rates": rates}
