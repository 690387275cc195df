"""
The pages of results and the README's figure: ``python -m benchmarks.pages``.

Reads the packed results of comparisons and, for each, a text in ``benchmarks/readings`` (what it shows, and what to know), and
writes ``docs/results/*.md`` with figures in ``docs/images``. Also writes ``docs/algorithms/arguments.md``. Nothing is trained.
The pages of the unseen tasks are rewritten once ``python -m benchmarks.unseen.report`` and
``python -m benchmarks.unseen.ablation`` have created them.
"""

import inspect
import re
import warnings
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from stable_baselines3 import PPO

from benchmarks.tables import equal_time_table, label, long_table, markdown, pairs_at_the_end, short_table, stability_table
from benchmarks.unseen.tasks import LISTS
from sb3_grpo import DAPO, GRPO
from sb3_grpo.classroom.compare.collect import collect
from sb3_grpo.classroom.compare.figures import Style, styles
from sb3_grpo.classroom.compare.ready import ready_path
from sb3_grpo.classroom.compare.results import Results
from sb3_grpo.classroom.compare.statistics import MIN_SEEDS, iqm_curve

ROOT = Path(__file__).resolve().parents[1]
RESULTS, READINGS = ROOT / "benchmarks" / "results", ROOT / "benchmarks" / "readings"
PAGES, IMAGES = ROOT / "docs" / "results", ROOT / "docs" / "images"
ARGUMENTS = ROOT / "docs" / "algorithms" / "arguments.md"

COMPARISONS = {
    "classroom": "Classic control and LunarLander",
    "paper_grpo": "GRPO as in its paper",
    "lunarlander_defaults": "LunarLander with the defaults",
    "box2d": "Box2D with continuous actions",
    "mujoco": "MuJoCo",
    "published_budgets": "At the budgets of published results",
    "kungfu_master": "KungFuMaster",
    "lunch": "Atari over lunch",
    "pong_short": "Pong",
    "breakout": "Breakout",
    "minatar": "MinAtar",
    "bfloat16": "What bfloat16 costs",
    "shared_starts": "What a shared start is worth",
}
# Tasks and algorithms of the README's figure
_FRONT_TASKS = ["CartPole-v1", "Acrobot-v1", "Pendulum-v1", "LunarLander-v3"]
_FRONT_ALGORITHMS = ["ppo", "grpo", "dapo"]


def draw_curves(results: Results, envs: list[str], variants: list[str], path: Path) -> None:
    """
    :param results: results of a comparison
    :param envs: environments, one axes each
    :param variants: variants, one curve each
    :param path: where to save the SVG
    """
    look = styles(results.variants)
    n_columns = min(len(envs), 3 if len(envs) in (3, 5, 6) else 4 if len(envs) == 4 else 2)
    n_rows = -(-len(envs) // n_columns)
    # A single one needs room for its title and four names
    width = 2.7 * n_columns if n_columns > 1 else 3.8
    # Keep text as text, and write the same file for the same data
    with matplotlib.rc_context({"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "sb3-grpo"}):
        figure, grid = plt.subplots(n_rows, n_columns, figsize=(width, 2.3 * n_rows + 0.3), squeeze=False)
        for axes, env in zip(grid.flat, envs, strict=False):
            for name in variants:
                _draw_curve(axes, results, env, name, look[name])
            axes.set_title(env.rsplit("/")[-1], fontsize=10)
            axes.set_xlabel("steps (thousands)")
            axes.grid(alpha=0.3)
        for axes in grid.flat[len(envs) :]:
            axes.axis("off")
        grid[0, 0].set_ylabel("return")
        handles, labels = grid[0, 0].get_legend_handles_labels()
        place = "outside upper center" if n_rows > 1 else "upper center"
        figure.legend(handles, labels, loc=place, ncols=4, frameon=False)
        figure.tight_layout(rect=(0, 0, 1, 0.95 if n_rows > 1 else 0.93))
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def _draw_curve(axes: plt.Axes, results: Results, env: str, name: str, style: Style) -> None:
    mode = results.main_mode(env)
    curves = results.curves(env, name, mode)
    if not curves.size:
        return
    band, x = iqm_curve(curves), results.grid(env, mode) / 1000
    axes.plot(x, band.value, color=style.colour, linestyle=style.linestyle, label=label(name), linewidth=1.5)
    axes.fill_between(x, band.low, band.high, color=style.colour, alpha=0.15, linewidth=0)


def fold(title: str, text: str) -> str:
    """
    :param title: title of a part of a page
    :param text: text of the part
    :return: the same part, folded
    """
    return f":::{{dropdown}} {title}\n{text.strip()}\n:::\n"


def kind_of_evaluation(results: Results) -> str:
    """
    :param results: results of a comparison
    :return: the kind of evaluation that its scores come from
    """
    sampled = [env for env in results.envs if results.main_mode(env) == "stochastic"]
    if len(sampled) == len(results.envs):
        return "stochastic"
    return f"deterministic (on {', '.join(sampled)}: stochastic)" if sampled else "deterministic"


def write_page(name: str, title: str) -> None:
    """
    :param name: name of a comparison
    :param title: title of its page
    """
    results = collect(RESULTS / name)
    draw_curves(results, results.envs, results.variants, IMAGES / f"{name}.svg")
    shows, _, to_know = (READINGS / f"{name}.md").read_text(encoding="utf-8").partition("\n---\n")
    n_seeds, kind = len(results.experiment["seeds"]), kind_of_evaluation(results)
    has_intervals = n_seeds >= MIN_SEEDS
    parts = [
        f"# {title}\n",
        f"![Learning curves](../images/{name}.svg){{.picture}}\n",
        f"*{n_seeds} seeds: IQM of {kind} evaluations during training"
        f"{', with its 95% bootstrap interval' if has_intervals else ''}.*\n",
        shows.strip() + "\n",
        short_table(results) + "\n",
        f"*Mean return of {results.experiment['n_final_episodes']} {kind} episodes after training: IQM over the seeds"
        f"{' with its 95% interval' if has_intervals else ''}.*\n",
        fold("All tasks: means, over training, seconds, seed by seed", long_table(results)),
    ]
    if len(results.variants) > 1:
        parts.append(fold("At equal time: when the fastest algorithm finishes", equal_time_table(results)))
        parts.append(fold("Over all tasks together", pairs_at_the_end([results])))
    parts.append(fold("How far the policies moved", stability_table(results)))
    if to_know.strip():
        parts.append(f"## What to know\n\n{to_know.strip()}\n")
    versions = {config["versions"]["sb3_grpo"] for config in results.configs.values()}
    machine = results.experiment["machine"]
    config = f"--config benchmarks/experiments/{name}.yml" if ready_path(name) is None else f"--preset {name}"
    parts.append(
        f"## How it was made\n\n`python -m sb3_grpo compare {config}`, sb3-grpo "
        f"{', '.join(sorted(versions))}, {machine.get('cpu', 'an unknown processor')}. All evaluations, logged values and "
        f"configurations: `benchmarks/results/{name}`; the full report: "
        f"`python -m sb3_grpo compare report benchmarks/results/{name}`.\n"
    )
    (PAGES / f"{name}.md").write_text("\n".join(parts), encoding="utf-8")


def main_table() -> str:
    """
    :return: final returns on classic control, including the paper's GRPO
    """
    header, *lines = short_table(collect(RESULTS / "classroom")).splitlines()
    paper_header, _, paper = (line.split("|")[2:-1] for line in short_table(collect(RESULTS / "paper_grpo")).splitlines())
    of_paper = dict(zip(paper_header, paper, strict=True))
    cells = [of_paper.get(column, "  ") for column in header.split("|")[2:-1]]
    return "\n".join([header, *lines, f"| GRPO as in the paper (5 seeds) |{'|'.join(cells)}|"])


def write_index() -> None:
    """Write the first page of the results, and the README's figure."""
    from benchmarks.unseen import overview  # imports this module

    results = collect(RESULTS / "classroom")
    draw_curves(results, _FRONT_TASKS, _FRONT_ALGORITHMS, IMAGES / "learning_curves.svg")
    text = (READINGS / "index.md").read_text(encoding="utf-8")
    text = text.replace("MAIN TABLE", main_table()).replace("DEFAULTS TABLE", overview.table())
    (PAGES / "index.md").write_text(text, encoding="utf-8")
    list_pages()


def list_pages() -> None:
    """Write the list of pages at the end of the first page."""
    index = PAGES / "index.md"
    text, _, _ = index.read_text(encoding="utf-8").partition("```{toctree}")
    of_scripts = (*(f"unseen_{name}" for name in LISTS), "ablation", "dapo_switches", "frontier")
    made = [name for name in of_scripts if (PAGES / f"{name}.md").exists()]
    names = "\n".join((*COMPARISONS, *made, "published", "speed", "text", "starts", "trust"))
    index.write_text(f"{text.strip()}\n\n```{{toctree}}\n:hidden:\n\n{names}\n```\n", encoding="utf-8")


def unseen_lists() -> list[str]:
    """
    :return: The lists of unseen tasks that have a page
    """
    return [name for name in LISTS if (PAGES / f"unseen_{name}.md").exists()]


def groups_of_arguments() -> dict[str, dict[str, str]]:
    """
    :return: The groups of arguments in the docstring of GRPO: the first sentence of each argument, in Markdown
    """
    groups: dict[str, dict[str, str]] = {}
    for title, text in re.findall(r"^\*\*(.+?)\*\*$(.+?)(?=^\*\*|\Z)", inspect.getdoc(GRPO) or "", re.MULTILINE | re.DOTALL):
        found = re.findall(r"^:param (\w+): (.+?)(?=^:param|\Z)", text, re.MULTILINE | re.DOTALL)
        # A sentence ends with a full stop, but not with that of "eq. 8" or "Dr. GRPO"
        sentences = {
            name: re.split(r"(?<!\beq)(?<!\bDr)\.\s", " ".join(meaning.split()) + " ")[0].strip() for name, meaning in found
        }
        groups[title] = {name: re.sub(r":\w+:`|``", "`", sentence) for name, sentence in sentences.items()}
    return groups


def arguments_page() -> str:
    """
    :return: The page of all arguments, with their defaults next to PPO's
    """
    of = [dict(inspect.signature(algorithm).parameters) for algorithm in (GRPO, DAPO, PPO)]

    def default(name: str, parameters: dict[str, inspect.Parameter]) -> str:
        if name not in parameters:
            return ""
        value = parameters[name].default
        return "required" if value is inspect.Parameter.empty else f"`{value!r}`"

    parts = [
        "# All arguments\n",
        "The arguments of `GRPO` and `DAPO` with their defaults, next to those of PPO in Stable-Baselines3. The "
        "[API](../api/algorithms.md) describes each in full. An empty cell: PPO has no such argument. If neither `n_steps` "
        "nor `n_groups` is given, the size of an update is [chosen](index.md#steps-or-whole-groups).\n",
    ]
    for title, meanings in groups_of_arguments().items():
        rows = [[f"`{name}`", *(default(name, each) for each in of), meaning] for name, meaning in meanings.items()]
        parts.append(f"## {title}\n\n{markdown(['argument', 'GRPO', 'DAPO', 'PPO', 'meaning'], rows)}\n")
    only_ppo = ", ".join(f"`{name}`" for name in of[2] if name not in of[0])
    parts.append(f"PPO alone has {only_ppo}.\n")
    return "\n".join(parts)


def main() -> None:
    # These import this module
    from benchmarks import published
    from benchmarks.unseen import ablation, report
    from benchmarks.unseen.run import rows

    warnings.filterwarnings("ignore", category=RuntimeWarning)  # intervals of too few seeds
    np.seterr(all="ignore")
    ARGUMENTS.write_text(arguments_page(), encoding="utf-8")
    PAGES.mkdir(parents=True, exist_ok=True)
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, title in COMPARISONS.items():
        print(name, flush=True)
        write_page(name, title)
    for name in unseen_lists():
        report.write_page(rows(), name)
    if (PAGES / "ablation.md").exists():
        ablation.write_page(rows())
    published.write_page()
    write_index()


if __name__ == "__main__":
    main()
