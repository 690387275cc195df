"""
Where GRPO's results come from: ``python -m benchmarks.unseen.ablation``.

The defaults, in full and without one of their parts, on the development list. Reads the runs from
``benchmarks/results/unseen.jsonl`` and writes ``docs/results/ablation.md`` and a figure in ``docs/images``. Nothing is
trained: the page lists the commands for the runs. ``scores.py`` defines the figures.
"""

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.pages import IMAGES, PAGES, READINGS, fold, list_pages
from benchmarks.tables import markdown
from benchmarks.unseen.report import (
    BEGIN,
    MOST_SEEDS,
    bullets,
    caption,
    clause,
    completeness,
    design_of,
    draw_profile,
)
from benchmarks.unseen.run import origins, rows
from benchmarks.unseen.scores import (
    MARGIN,
    Row,
    Runs,
    against,
    all_rows,
    clipped,
    common_tasks,
    gap_interval,
    scores,
    select,
)
from benchmarks.unseen.tables import by_task, counted, mean_text, seeds_text
from benchmarks.unseen.tasks import LISTS, SEEDS
from sb3_grpo.classroom.compare.findings import interval_text
from sb3_grpo.classroom.compare.statistics import iqm_interval

LIST = "development"
DEFAULTS, PAPER = "grpo", "grpo-paper"
_text = partial(interval_text, least=1.0)


class Part(NamedTuple):
    """
    A part of the defaults that is removed.

    :param changes: Arguments
    :param label: Label of what remains, in tables
    :param phrase: The same in sentences
    """

    changes: dict[str, Any]
    label: str
    phrase: str


# By the designs of their runs
PARTS = {
    "unrelated": Part({"unrelated_starts": True}, "unrelated starts", "GRPO without shared starts"),
    "whole_groups": Part({"n_groups": 4}, "whole groups", "GRPO with whole groups"),
    "return_to_go": Part(
        {"advantage": "return_to_go", "loss_average": "step"}, "no regression", "GRPO without the regression"
    ),
}
LABELS = {DEFAULTS: "defaults", **{design: part.label for design, part in PARTS.items()}, PAPER: "GRPO-paper"}
PHRASES = {DEFAULTS: "GRPO", **{design: part.phrase for design, part in PARTS.items()}, PAPER: "GRPO as in the paper"}


def variants(found: Sequence[Row], design: str, name: str = LIST) -> Runs:
    """
    :param found: All rows
    :param design: Design of the defaults
    :param name: Name of a list
    :return: The defaults, the same without each part, and the paper's settings, as far as there are runs
    """
    of_defaults = select(found, name, design)
    of = {DEFAULTS: of_defaults.of.get("grpo", {})}
    for of_part in PARTS:
        of[of_part] = select(found, name, of_part).of.get("grpo", {})
    of[PAPER] = of_defaults.of.get("grpo-paper", {})
    of = {variant: runs for variant, runs in of.items() if runs}
    for variant, part in PARTS.items():
        made_with = [row.get("changes") for runs in of.get(variant, {}).values() for row in runs]
        if any(changes != part.changes for changes in made_with):
            raise SystemExit(f"The runs of the design {variant} are not those of {json.dumps(part.changes)}.")
    return Runs(name, design, of_defaults.paper, of, common_tasks(of, name))


def table(runs: Runs) -> str:
    """
    :param runs: The runs shown
    :return: A row for each variant, and the defaults against it
    """
    lines = []
    for variant in runs.of:
        of_one = scores(runs, variant)
        changes = f"`{json.dumps(PARTS[variant].changes)}`" if variant in PARTS else ""
        line = [LABELS[variant], changes, counted(runs, variant), _text(iqm_interval(clipped(of_one)))]
        cells = ["", "", ""]
        if DEFAULTS in runs.of and variant != DEFAULTS:
            pair = against(scores(runs, DEFAULTS), of_one)
            cells = [_text(pair.difference), _text(pair.improvement), pair.word]
        lines.append([*line, _text(gap_interval(of_one)), *cells])
    columns = ["", "changes", "runs", "IQM", "optimality gap"]
    columns += ["defaults: difference of the IQMs", "defaults: probability of improvement", "defaults are"]
    return markdown(columns, lines)


def result(runs: Runs) -> str:
    """
    :param runs: The runs shown
    :return: What the numbers show, a list
    """
    others = [variant for variant in runs.of if variant != DEFAULTS]
    if DEFAULTS not in runs.of or not others or not runs.common:
        return "Nothing is compared yet: there is no task with runs of the defaults and of every variant shown."
    pairs = [(DEFAULTS, other) for other in others]
    # Without the regression an update also has whole groups: what that alone is worth
    if "whole_groups" in runs.of and "return_to_go" in runs.of:
        pairs.append(("whole_groups", "return_to_go"))
    clauses = [
        clause(PHRASES[first], against(scores(runs, first), scores(runs, second)), other=PHRASES[second])
        for first, second in pairs
    ]
    return bullets(f"At equal steps, over {len(runs.common)} of {len(LISTS[runs.list])} tasks", clauses)


def page(runs: Runs) -> str:
    """
    :param runs: The runs shown
    :return: The page in Markdown
    """
    parts = [f"{BEGIN}{runs.design}\n", "# Where the results come from\n"]
    if runs.common:
        parts += ["![Performance profiles](../images/ablation.svg){.picture}\n", caption(runs)]
    parts += [result(runs) + "\n", completeness(runs, LABELS) + "\n"]
    if runs.common:
        parts.append(table(runs) + "\n")
    parts += [
        f"*Above* or *below*: the 95% interval of the probability of improvement excludes 0.5. *Level*: it does not, and the "
        f"interval of the difference of the IQMs lies within {MARGIN}. Otherwise *undecided*. Intervals are stratified "
        "bootstraps over the seeds, not corrected for the number of comparisons.\n",
        "## Task by task\n",
        by_task(runs, mean_text, labels=LABELS) + "\n",
        "*Return of 100 deterministic episodes after training, mean over the seeds.*\n",
    ]
    if SEEDS[runs.list] <= MOST_SEEDS:
        parts.append(fold("Seed by seed", by_task(runs, seeds_text, labels=LABELS)))
    parts.append(f"## What to know\n\n{(READINGS / 'ablation.md').read_text(encoding='utf-8')}")
    parts.append(f"## How it was made\n\n{made(runs)}\n")
    return "\n".join(part for part in parts if part.strip())


def made(runs: Runs) -> str:
    """
    :param runs: The runs shown
    :return: Commands, commits, machines and versions
    """
    command = f"python -m benchmarks.unseen.run {runs.list}"
    commands = [f"{command} --algos grpo --design {runs.design}", f"{command} --algos grpo-paper --design {runs.paper}"]
    commands += [
        f"{command} --algos grpo --design {design} --changes '{json.dumps(part.changes)}'" for design, part in PARTS.items()
    ]
    commands.append(f"python -m benchmarks.unseen.ablation --design {runs.design}")
    block = "\n".join(("```sh", *commands, "```"))
    return f"{block}\n\n{origins(all_rows(runs))}"


def write_page(
    found: Sequence[Row], design: str | None = None, name: str = LIST, pages: Path = PAGES, images: Path = IMAGES
) -> None:
    """
    :param found: All rows
    :param design: Design of the defaults. If None, that of the existing page, or else that of the list's page
    :param name: Name of the list
    :param pages: Folder of the page
    :param images: Folder of the figure
    """
    path = pages / "ablation.md"
    if design is None:
        design = design_of(path if path.exists() else pages / f"unseen_{name}.md")
    runs = variants(found, design, name)
    if not runs.of:
        raise SystemExit(f"No runs of {design} on the list {name}.")
    if runs.common:
        draw_profile(runs, images / "ablation.svg", LABELS)
    path.write_text(page(runs), encoding="utf-8")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--design", help="of the defaults; that of the page there is, or else of the page of the list")
    args = parser.parse_args()
    write_page(rows(), args.design)
    list_pages()


if __name__ == "__main__":
    main()
