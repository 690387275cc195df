"""One real training for each chapter, on the same task, as ``benchmarks/lecture_runs.py`` recorded it: pictures and words."""

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from io import StringIO
from statistics import mean, median
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure

from sb3_grpo.classroom.pictures import NO_DATE, drawing, inline

RECORDED = json.loads((files("sb3_grpo.classroom.lecture") / "data" / "runs.json").read_text("utf-8"))
RUNS: dict[str, Any] = RECORDED["runs"]
_STEPS = [steps / 1000 for steps in RECORDED["steps"]]
_NAMES = {
    "vpg": "policy gradient",
    "trpo": "TRPO",
    "ppo": "PPO",
    "grpo": "GRPO (paper)",
    "dapo": "DAPO (paper)",
    "prorl": "ProRL",
    "grpo_default": "GRPO, package defaults",
    "dapo_default": "DAPO, package defaults",
}
# The stylesheet has these colours
_BLUE, _ORANGE, _GREEN, _PINK, _GREY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7f7f7f"
_COLOURS = {"vpg": _GREY, "trpo": _PINK, "ppo": _BLUE, "grpo": _ORANGE, "dapo": _GREEN, "prorl": _GREEN}
# Columns of the updates: label of the axis, and caption
_MEASURES = {
    "kl": ("KL, nats", "How far each update moved the policy: mean KL(old ‖ new) over its states."),
    "clipped": ("share", "Share of the samples that the clip cut off, averaged over the passes of an update."),
    "dead": ("share", "Share of dead groups among those drawn for an update."),
    "entropy": ("entropy", "Entropy of the policy: 0.69 is a coin toss, 0 always the same action."),
    "kl_ref": ("KL, nats", "KL(policy ‖ reference) after each update, on its states."),
}


class _Shown(NamedTuple):
    """
    What a chapter shows next to the run.

    :param others: Runs whose means are drawn, too
    :param measures: Columns of the updates and the run that they belong to
    :param bound: A line in the last picture
    """

    others: Sequence[str]
    measures: Sequence[tuple[str, str]]
    bound: float | None = None


_SHOWN = {
    "vpg": _Shown((), (("kl", "vpg"), ("entropy", "vpg"))),
    "trpo": _Shown(("vpg",), (("kl", "trpo"),), bound=0.01),
    "ppo": _Shown(("trpo",), (("clipped", "ppo"), ("kl", "ppo"))),
    "grpo": _Shown(("ppo", "grpo_default"), (("kl_ref", "grpo"), ("dead", "grpo_default"))),
    "dapo": _Shown(("grpo", "dapo_default"), (("entropy", "dapo"), ("dead", "dapo_default"))),
    "prorl": _Shown(("dapo",), (("kl_ref", "prorl"),)),
}


def run(name: str, title: str) -> str:
    """
    :param name: A chapter with a run, or "all"
    :param title: Heading
    :return: HTML
    """
    with drawing():
        said, pictures = _all() if name == "all" else _one(name)
    return (
        f'<section class="widget" id="run-{name}" aria-label="{escape(title.strip())}"><h3>{escape(title.strip())}</h3>'
        f'<p class="says">{said}</p><div class="pictures">{pictures}</div></section>'
    )


def last(name: str) -> str:
    """
    :param name: A run
    :return: The interquartile mean at the end, with its interval
    """
    value, low, high = (part[-1] for part in RUNS[name]["iqm"])
    return f"{value:.0f} ({low:.0f} to {high:.0f})"


def kls(name: str) -> list[float]:
    """
    :param name: A run
    :return: KL of all updates of all seeds, in ascending order
    """
    return sorted(kl for updates in RUNS[name]["updates"] for kl in updates["kl"])


def _one(name: str) -> tuple[str, str]:
    """
    :param name: A chapter with a run
    :return: What is said, and the pictures with the program
    """
    others, measures, bound = _SHOWN[name]
    ends = [curve[-1] for curve in RUNS[name]["curves"]]
    seeds = " to ".join(dict.fromkeys(f"{end:.0f}" for end in (min(ends), max(ends))))
    said = f"CartPole, 50,000 steps. Interquartile mean of five seeds at the end: {last(name)}. Single seeds: {seeds}."
    program = f'<pre tabindex="0" role="region" aria-label="The program"><code>{escape(RUNS[name]["program"])}</code></pre>'
    drawn = "".join(_measure(name, column, of, bound) for column, of in measures)
    return said, f"<div>{_curve(name, others)}{program}</div><div>{drawn}{_made()}</div>"


def _made() -> str:
    """
    :return: Where the numbers come from
    """
    made = RECORDED["made"]
    seeds, versions = ", ".join(map(str, made["seeds"])), made["versions"]
    return (
        f'<p class="note made">Recorded by {made["command"]}: seeds {seeds}; {made["cpu"]}, {made["cores"]} cores; torch '
        f"{versions['torch']}, Stable-Baselines3 {versions['stable_baselines3']}, sb3-grpo {versions['sb3_grpo']}.</p>"
    )


def _curve(name: str, others: Sequence[str]) -> str:
    figure, axes = _axes("return")
    value, low, high = RUNS[name]["iqm"]
    axes.fill_between(_STEPS, low, high, color=_BLUE, alpha=0.2, linewidth=0)
    for place, other in enumerate(others):
        axes.plot(_STEPS, RUNS[other]["iqm"][0], color=_GREY, linestyle="--" if place else "-")
    for curve in RUNS[name]["curves"]:
        axes.plot(_STEPS, curve, color=_BLUE, alpha=0.55, linewidth=0.8)
    axes.plot(_STEPS, value, color=_BLUE)
    grey = "".join(f" Grey{', dashed' if place else ''}: {_NAMES[other]}." for place, other in enumerate(others))
    caption = "Return of 20 episodes with sampled actions. Thick: interquartile mean of five seeds, with its 95% interval; "
    return _figure(figure, f"{_NAMES[name]}: {last(name)} at the end.", f"{caption}thin: each seed.{grey}")


def _measure(name: str, column: str, of: str, bound: float | None) -> str:
    label, caption = _MEASURES[column]
    # From update to update where a reference is reset after a number of them
    figure, axes = _axes(label, "updates" if column == "kl_ref" else "steps, in thousands", height=2.0)
    ends = []
    for updates in RUNS[of]["updates"]:
        x = range(1, len(updates["steps"]) + 1) if column == "kl_ref" else [steps / 1000 for steps in updates["steps"]]
        # Nothing is known of groups where none has ended
        known = [(at, value) for at, value in zip(x, updates[column], strict=True) if value is not None]
        axes.plot(*zip(*known, strict=True), color=_BLUE, alpha=0.75, linewidth=0.9)
        ends.append(f"{updates[column][-1]:.3f}")
    caption = f"{'' if of == name else f'{_NAMES[of]}. '}{caption}"
    said = f"{caption} At the end: {', '.join(ends)}."
    if bound:
        axes.axhline(bound, color=_ORANGE, linestyle="--")
        caption += f" Orange: the bound, {bound}."
    return _figure(figure, said, f"{caption} One line per seed.")


def curves_of_all() -> str:
    """
    :return: All runs in one picture, as HTML
    """
    with drawing():
        figure, axes = _axes("return")
        for name, colour in _COLOURS.items():
            axes.plot(_STEPS, RUNS[name]["iqm"][0], color=colour, linestyle="--" if name == "prorl" else "-")
        caption = "Grey: policy gradient. Pink: TRPO. Blue: PPO. Orange: GRPO. Green: DAPO, dashed: ProRL."
        return _figure(figure, f"Return of all runs. {caption}", caption)


def _all() -> tuple[str, str]:
    """
    :return: What is said, and all runs in one picture and one table
    """
    rows = "".join(
        f'<tr><th scope="row">{_NAMES[name]}</th><td>{median(len(updates["steps"]) for updates in of["updates"])}</td>'
        f'<td>{mean(of["iqm"][0]):.0f}</td><td class="narrow">{last(name)}</td></tr>'
        for name, of in RUNS.items()
    )
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("", "updates", "mean over training", "at the end"))
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    return "Interquartile means of five seeds.", curves_of_all() + table + _made()


def _axes(ylabel: str, xlabel: str = "steps, in thousands", height: float = 3.0) -> tuple[Figure, Any]:
    figure = Figure(figsize=(4.6, height), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=xlabel, ylabel=ylabel)
    return figure, axes


def _figure(figure: Figure, label: str, caption: str) -> str:
    """
    :param figure: A figure
    :param label: What is in it, for those who do not see it
    :param caption: What stands below
    :return: HTML
    """
    axes, file = figure.axes[0], StringIO()
    axes.margins(x=0.02)
    axes.set_ylim(bottom=0)
    with rc_context({"svg.hashsalt": label}):
        figure.savefig(file, format="svg", transparent=True, metadata=NO_DATE)
    picture = f'<div class="picture" role="img" aria-label="{escape(label)}">{inline(file.getvalue())}</div>'
    return f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>"
