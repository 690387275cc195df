"""
The tables and pictures of the pages of results: ``python -m benchmarks.pages`` (or some pages: ``... pages index tables``).

Each page in ``docs/results``, and some others, say where a table or a picture stands (``blocks.py``), and is
written again from ``benchmarks/results``. Nothing is trained.
"""

import argparse
import csv
import warnings
from typing import Any

import numpy as np

from benchmarks import entries, gpu, lesson, million, tables, text, tuning
from benchmarks.blocks import Writers, markdown, picture, refresh_page
from benchmarks.common import PAGES, RESULTS, read_result, rows
from benchmarks.figures import draw_dots, figure_of
from benchmarks.language_model import report as language_model
from benchmarks.masks_memory import report as masks_memory
from benchmarks.switches import report as switches
from benchmarks.unseen import report as unseen
from benchmarks.unseen.clock import rates


def draw_speed() -> str:
    """
    :return: The picture of the speed on each task, in Markdown
    """
    cartpole, found = read_result("speed.json")["cells"][0]["median_of_paired_ratios"], rates("test_2")
    tasks, dots = list(dict.fromkeys(task for task, _ in found)), {}
    for algo in ("grpo", "dapo"):
        ratios = [found[task, algo] / found[task, "ppo-16-1e-3"] for task in tasks]
        dots[algo] = [[each] * 3 for each in (cartpole[algo]["training_vs_ppo_with_the_same_updates"], *ratios)]
    with figure_of("speed", figsize=(5.6, 3.8)) as (figure, axes):
        draw_dots(axes, ["CartPole-v1", *tasks], dots, at=1.0)
        axes.set(xlabel="steps per CPU second, times PPO's", xlim=(0, None))
        figure.legend(loc="outside upper center", ncols=2, frameon=False)
    caption = "Against PPO with the same environments and minibatches, without `VecNormalize`; 4,096 steps (CartPole: 30,000)."
    return picture("speed", "Steps per CPU second of GRPO and DAPO, times PPO's, on CartPole and thirteen tasks", caption)


def speed() -> str:
    """
    :return: The picture, and a row for each task and number of copies that was measured
    """
    peers = ("training_vs_ppo_with_the_same_updates", "training_vs_ppo")
    lines = []
    for cell in read_result("speed.json")["cells"]:
        against = cell["median_of_paired_ratios"]
        ratios = [" and ".join(f"{against[algo][key]:.1f}" for algo in ("grpo", "dapo")) for key in peers]
        lines.append([f"{cell['env']}, {cell['n_envs']}", *ratios])
    columns = ["task, `n_envs`", "PPO, same updates", "PPO, RL Zoo"]
    return f"{draw_speed()}\n\n{markdown(columns, lines)}"


def atari_speed() -> str:
    """
    :return: What PPO and GRPO need on an Atari game
    """
    result = read_result("atari_speed.json")
    (ratios,) = result["median_of_paired_ratios"].values()
    lines = []
    for key, what in (("steps_per_cpu_second", "steps per CPU second"), ("peak_memory_mib", "peak memory, MiB")):
        lines.append([what, *(f"{result['median'][algo][key]:.0f}" for algo in ("ppo", "grpo")), f"{ratios[key]:.2f}"])
    return markdown(["", "PPO", "GRPO", "times PPO's"], lines)


def critic_memory() -> str:
    """
    :return: A row for each kind of critic
    """
    labels = {"text": "transformer of 8 layers", "control": "CartPole, two layers of 2,048"}
    lines = []
    for subject, figures in read_result("critic_memory.json")["medians"].items():
        task, _, critic = subject.partition(", ")
        who = "GRPO, no critic network" if critic == "no critic" else f"PPO, {critic}"
        millions = f"{figures['parameters_millions']:.1f}"
        lines.append([f"{labels[task]}: {who}", millions, f"{figures['training_mib']:.0f}"])
    return markdown(["", "parameters, millions", "memory of training, MiB"], lines)


def trust() -> str:
    """
    :return: A row for each kind of attempt to break the package
    """
    resumed = rows(RESULTS / "resume.jsonl")
    identical = [each for setting in resumed for each in setting["identical"]]
    with (RESULTS / "atari_starts.csv").open(newline="") as file:
        games = [set(list(row.values())[2:]) for row in csv.DictReader(file)]
    kills = read_result("kills.json")
    found: list[dict[str, Any]] = [
        {
            "what": f"training resumed in new processes, {len(resumed)} settings",
            "n": len(identical),
            "as_promised": sum(identical),
            "command": "resume",
        },
        {
            "what": f"processes killed, {kills['while_writing']} of them while they wrote a checkpoint",
            "n": kills["kills"],
            "as_promised": kills["resumable"],
            "command": "kills",
        },
        {
            "what": f"starts of {len(games) // 2} Atari games, with and without sticky actions",
            "n": len(games),
            "as_promised": sum("no" not in words for words in games),
            "command": "atari_starts",
        },
        *(read_result(f"trust/{path.name}") for path in sorted((RESULTS / "trust").glob("*.json"))),
    ]
    lines = []
    for each in found:
        kept = f"{100 * each['as_promised'] / each['n']:.4g}%"
        script = each["command"].removeprefix("python -m ").partition(".")[2] or each["command"]
        lines.append([each["what"], f"{each['n']:,}", kept, f"`{script}`"])
    return markdown(["what was tried", "attempts", "kept", "`python -m stress.`..."], lines)


OWN = (speed, atari_speed, critic_memory, trust)
WRITERS: Writers = {
    **{writer.__name__: writer for writer in OWN},
    **gpu.WRITERS,
    **tables.WRITERS,
    **text.WRITERS,
    **language_model.WRITERS,
    **lesson.WRITERS,
    **masks_memory.WRITERS,
    **switches.WRITERS,
    **tuning.WRITERS,
    **entries.WRITERS,
    **million.WRITERS,
    **unseen.WRITERS,
}
# Pages by name
_OTHERS = [PAGES.parent / name for name in ("lesson_plan.md", "tuning.md")]
WRITTEN = {path.stem: path for path in [*sorted(PAGES.glob("*.md")), *_OTHERS]}


def main() -> None:
    """Write the pages again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", choices=[*WRITTEN, []], help="which; all of them if none is named")
    warnings.filterwarnings("ignore", category=RuntimeWarning)  # intervals of too few seeds
    np.seterr(all="ignore")
    for name in parser.parse_args().pages or WRITTEN:
        refresh_page(WRITTEN[name], WRITERS)


if __name__ == "__main__":
    main()
