"""The tables and pictures of masks and memory: ``python -m benchmarks.pages tables``."""

from collections import defaultdict
from typing import Any

import numpy as np

from benchmarks.blocks import Writers, markdown, picture, steps_text
from benchmarks.common import rows
from benchmarks.figures import draw_curves, label
from benchmarks.masks_memory.run import RESULTS, SEEDS, VARIANTS
from benchmarks.masks_memory.tasks import TASKS
from sb3_grpo.classroom.compare.findings import interval_text
from sb3_grpo.classroom.compare.statistics import iqm_curve, iqm_interval

NAMES = {
    "maskable_ppo": "MaskablePPO",
    "recurrent_ppo": "RecurrentPPO",
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
    alt = f"Return over steps of {', '.join(map(_name, drawn))} on {', '.join(tasks)}"
    return picture(name, alt, "Return of episodes with sampled actions: IQM of five seeds and its 95% interval.")


def returns(needs: str) -> str:
    """
    :param needs: Masks, memory, or both
    :return: A row for each task with all seeds, a column for each variant; of a single task, a row for each variant
    """
    runs, names = _runs(), VARIANTS[needs]
    tasks = [task for task, each in TASKS.items() if each.needs == needs and len(runs[task, "dapo"]) == SEEDS]
    lines = []
    for task in tasks:
        finals = [np.array([run["returns"][-1] for run in runs[task, variant]]) for variant in names]
        title = f"{task.removeprefix('InvalidActionEnv')}, {steps_text(TASKS[task].timesteps)}"
        lines.append([title, *(interval_text(iqm_interval([each])) for each in finals)])
    table = [["", *map(_name, names)], *lines]
    columns, *lines = [list(each) for each in zip(*table, strict=True)] if len(tasks) == 1 else table
    return markdown(columns, lines)


WRITERS: Writers = {"masks_memory_curves": curves, "masks_memory_returns": returns}
