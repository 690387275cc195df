"""
The page of a list: ``python -m benchmarks.unseen.report development`` or ``test``.

Reads ``benchmarks/results/unseen.jsonl`` and writes ``docs/results/unseen_development.md`` (``unseen_test.md``) and a figure
in ``docs/images``. Nothing is trained. ``scores.py`` defines the figures.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np

from benchmarks.pages import IMAGES, PAGES, fold, list_pages
from benchmarks.tables import markdown
from benchmarks.unseen.run import origins, rows
from benchmarks.unseen.scores import (
    CLIP,
    MARGIN,
    Pair,
    Row,
    Runs,
    against,
    all_rows,
    at_equal_seconds,
    clipped,
    designs,
    median_seconds,
    say,
    scores,
    select,
)
from benchmarks.unseen.tables import (
    LABELS,
    LESS_THAN_HALF,
    PAIRS,
    behind,
    by_task,
    counted,
    mean_text,
    n_tasks,
    rows_of_pairs,
    score_text,
    seeds_text,
    table_of_designs,
    table_of_scores,
    variants_of_ppo,
)
from benchmarks.unseen.tasks import LISTS, SEEDS
from sb3_grpo.classroom.compare.figures import styles
from sb3_grpo.classroom.compare.findings import number
from sb3_grpo.classroom.compare.statistics import performance_profile

# If there are more, they are not listed one by one
MOST_SEEDS = 3
TITLES = {
    "development": "Tasks that were used to choose the defaults",
    "test": "Tasks that were not used to choose the defaults",
    "test_2": "A second list of tasks that were not used to choose the defaults",
    "long": "Tasks on which earlier defaults failed",
}
# Notes on the looks at lists that are used up
USED_UP = {
    "test": "The rules allow two. Since then the list is used for development: *staggered* was found on some of its tasks, "
    "and the test is [a second list](unseen_test_2.md). "
}
# A comment in Markdown: a page that is written again keeps its design, whatever was tried since
BEGIN = "% Design: "


def result(runs: Runs) -> str:
    """
    :param runs: The runs shown
    :return: What the numbers show of ours, next to the variant of PPO that is hardest to beat, lists
    """
    ours = [algo for algo in ("grpo", "dapo") if algo in runs.of]
    if not variants_of_ppo(runs) or not ours or not runs.common:
        return "Nothing is compared yet: there is no task with runs of PPO and of every other algorithm shown."
    readings: dict[str, Callable[[str, str], list[Pair]]] = {
        f"At equal steps, over {len(runs.common)} of {n_tasks(len(LISTS[runs.list]))}": lambda algo, peer: [
            against(scores(runs, algo), scores(runs, peer))
        ],
        "At equal seconds": lambda algo, peer: at_equal_seconds(runs, algo, peer),
    }
    parts = []
    for head, read in readings.items():
        lines = []
        for algo in ours:
            pairs = {peer: read(algo, peer) for peer in variants_of_ppo(runs)}
            closest = min(pairs, key=lambda peer: pairs[peer][-1].improvement.value)
            lines.append(clause(LABELS[algo], *pairs[closest], other=f"*{LABELS[closest]}*"))
        parts.append(bullets(head, lines))
    behind_on = {algo: ", ".join(task.env_id for task in behind(runs, algo)) for algo in ours}
    lines = [f"{LABELS[algo]} on {names}" for algo, names in behind_on.items() if names]
    if lines:
        parts.append(bullets("Less than half of the best PPO's gain over a random policy", lines))
    return "\n\n".join(parts)


def bullets(head: str, lines: Sequence[str]) -> str:
    """
    :param head: What the lines are about
    :param lines: Without full stops
    :return: A list in Markdown
    """
    return "\n".join([f"**{head}**\n", *(f"- {line}." for line in lines)])


def clause(label: str, *pairs: Pair, other: str = "PPO") -> str:
    """
    :param label: Label of an algorithm
    :param pairs: It and the other, with the slower one read at its last evaluation, and at its next one if that gives
        another result
    :param other: Label of the other
    :return: What can be said about the two, and the numbers
    """
    says = {word: f"{label} is {word} {other}" for word in ("above", "below")}
    says |= {"level": f"{label} and {other} are level", "undecided": f"between {label} and {other} it is undecided"}
    text = says[say(pairs)]
    if not all(pair.improvement.known for pair in pairs):
        text = f"of {label} and {other} there are too few seeds to say"
    first, *following = pairs
    text += f": probability of improvement {score_text(first.improvement)}, "
    text += f"difference of the IQMs {score_text(first.difference)}"
    for pair in following:
        text += f"; with the slower one's next evaluation {score_text(pair.improvement)} and {score_text(pair.difference)}"
    return text[0].upper() + text[1:]


def completeness(runs: Runs, labels: Mapping[str, str] = LABELS) -> str:
    """
    :param runs: The runs shown
    :param labels: Labels of all that should be shown
    :return: What is missing, empty if nothing is
    """
    tasks, all_runs = LISTS[runs.list], len(LISTS[runs.list]) * SEEDS[runs.list]
    short = [algo for algo in runs.of if sum(map(len, runs.of[algo].values())) < all_runs]
    said = [f"{labels[algo]} {counted(runs, algo)} runs" for algo in short]
    said += [f"{label} 0 of {all_runs} runs" for algo, label in labels.items() if algo not in runs.of and "16" not in algo]
    left_out = [task.env_id for task in tasks if task not in runs.common]
    text = f"**Not complete:** {', '.join(said)}. " if said else ""
    if left_out:
        text += f"The aggregates cover {len(runs.common)} of {n_tasks(len(tasks))}, without {', '.join(left_out)}."
    return text.strip()


def draw_profile(runs: Runs, path: Path, labels: Mapping[str, str] = LABELS) -> None:
    """
    :param runs: The runs shown
    :param path: Where to save the SVG
    :param labels: Labels of the curves
    """
    look, thresholds = styles(list(labels)), np.linspace(*CLIP, 161)
    # Keep text as text, and write the same file for the same data
    with matplotlib.rc_context({"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "sb3-grpo"}):
        figure, axes = plt.subplots(figsize=(7.0, 3.8), layout="constrained")
        for algo in runs.of:
            band, style = performance_profile(clipped(scores(runs, algo)), thresholds), look[algo]
            width = 2.0 if algo in ("ppo", "grpo", "dapo") else 1.2
            axes.plot(
                thresholds, band.value, color=style.colour, linestyle=style.linestyle, label=labels[algo], linewidth=width
            )
            axes.fill_between(thresholds, band.low, band.high, color=style.colour, alpha=0.1, linewidth=0)
        for at in (0.0, 1.0):
            axes.axvline(at, color="#888888", linewidth=0.8, linestyle=":")
        axes.set(xlabel="normalised score τ (0: random policy, 1: reference)", ylabel="share of runs above τ")
        axes.set(xlim=CLIP, ylim=(-0.02, 1.02))
        axes.grid(alpha=0.3)
        figure.legend(
            loc="outside upper center", ncols=min(len(runs.of), 3), frameon=False, columnspacing=1.2, handlelength=2.5
        )
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def made(runs: Runs) -> str:
    """
    :param runs: The runs shown
    :return: Commands, commits, machines and versions
    """
    return (
        f"`python -m benchmarks.unseen.run {runs.list}` with the design {runs.design}, then "
        f"`python -m benchmarks.unseen.report {runs.list} --design {runs.design}`. {origins(all_rows(runs))}"
    )


def page(found: Sequence[Row], runs: Runs) -> str:
    """
    :param found: All rows
    :param runs: The runs shown
    :return: The page in Markdown
    """
    name, n_seeds = runs.list, SEEDS[runs.list]
    looks = designs(found, name)
    parts = [f"{BEGIN}{runs.design}\n", f"# {TITLES[name]}\n"]
    if runs.common:
        parts += [
            f"![Performance profiles](../images/unseen_{name}.svg){{.picture}}\n",
            caption(runs),
        ]
    parts += [result(runs) + "\n", completeness(runs) + "\n", _how_to_read(runs, looks)]
    if runs.common:
        parts += [
            "## Against each of the others\n",
            markdown(PAIRS, rows_of_pairs(runs)) + "\n",
            "*Probability that a run of ours ends above one of the other's on the same task, mean over the tasks, and what "
            "it says. At equal seconds, the slower one counts with its next evaluation.*\n",
            "## Over the tasks\n",
            table_of_scores(runs) + "\n",
        ]
    parts += [
        "## Task by task\n",
        by_task(runs, mean_text, marks=True) + "\n",
        f"*Return of 100 deterministic episodes after training, mean over the seeds. {LESS_THAN_HALF}: less than half of "
        f"the best PPO's gain over a random policy, where that is at least {MARGIN} of the scale.*\n",
    ]
    if n_seeds <= MOST_SEEDS:
        parts.append(fold("Seed by seed", by_task(runs, seeds_text)))
    parts += [
        fold("Seconds of a processor, median", by_task(runs, lambda of_one: number(median_seconds(of_one)))),
        "## Designs\n",
        f"Designs tried on this list: {len(looks)} ({', '.join(looks)}). {USED_UP.get(name, '')}A design is one version of "
        "GRPO and DAPO; all of them stay here.\n",
        table_of_designs(found, name) + "\n",
        f"## How it was made\n\n{made(runs)}\n",
    ]
    return "\n".join(part for part in parts if part.strip())


def caption(runs: Runs) -> str:
    """
    :param runs: The runs shown
    :return: The caption of the profiles
    """
    return (
        f"*Share of runs whose normalised score is above τ, with its 95% bootstrap interval; {SEEDS[runs.list]} seeds on "
        f"{len(runs.common)} of {n_tasks(len(LISTS[runs.list]))}. A score is (return - random) / (reference - random), "
        f"clipped to {CLIP[0]} and {CLIP[1]}.*\n"
    )


def _how_to_read(runs: Runs, looks: Sequence[str]) -> str:
    """
    :param runs: The runs shown
    :param looks: Designs that the list was looked at with
    :return: The terms used on the page, and what the algorithms are
    """
    paper = "" if runs.paper == runs.design else f" (runs with the design {runs.paper})"
    return (
        f"*Above* or *below*: the 95% interval of the probability of improvement excludes 0.5. *Level*: it does not, and "
        f"the interval of the difference of the IQMs lies within {MARGIN}, which was fixed before any run on the test "
        f"list. Otherwise *undecided*. Intervals are stratified bootstraps over the seeds, not corrected for the number of "
        f"comparisons. At equal seconds, the faster one of two has finished; the slower one is read at its last evaluation "
        f"by then, and at its next one, and both must say the same.\n\n"
        f"All algorithms use the defaults of their class, and PPO also our 16 copies: 128 steps of each, ten epochs, "
        f"minibatches of 256, with its own learning rate of 3e-4 and with ours of 1e-3. The updates of GRPO and DAPO begin "
        f"with as many steps and grow to 8,192. *Normalised*: in a `VecNormalize`, which also scales rewards, where actions "
        f"are continuous: there, GRPO and DAPO normalise observations. GRPO and DAPO have the design {runs.design} "
        f"(designs tried on this list: {len(looks)}). GRPO-paper: the preset grpo-paper with our group size, epochs and "
        f"minibatches{paper}.\n"
    )


def design_of(page: Path) -> str:
    """
    :param page: An existing page
    :return: The design that it shows
    """
    return page.read_text(encoding="utf-8").splitlines()[0].removeprefix(BEGIN)


def write_page(found: Sequence[Row], name: str, design: str | None = None, pages: Path = PAGES, images: Path = IMAGES) -> None:
    """
    :param found: All rows
    :param name: Name of a list
    :param design: Design of GRPO and DAPO. If None, that of the existing page, or else that of the last look at the list
    :param pages: Folder of the page
    :param images: Folder of the figure
    """
    looks, path = designs(found, name), pages / f"unseen_{name}.md"
    if design is None and path.exists():
        design = design_of(path)
    if not looks or design not in (None, *looks):
        raise SystemExit(f"No runs of {design or 'ours'} on the list {name}. Designs: {', '.join(looks) or 'none'}")
    runs = select(found, name, design or looks[-1])
    if runs.common:
        draw_profile(runs, images / f"unseen_{name}.svg")
    path.write_text(page(found, runs), encoding="utf-8")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", choices=LISTS)
    parser.add_argument("--design", help="of GRPO and DAPO; that of the page there is, or else the last one")
    args = parser.parse_args()
    write_page(rows(), args.list, args.design)
    list_pages()


if __name__ == "__main__":
    main()
