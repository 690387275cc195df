"""``sb3-grpo compare report``: one page that needs no network, and its pictures as files."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track

from sb3_grpo.classroom.compare import curves, figures, findings, side_by_side, tables
from sb3_grpo.classroom.compare.clips import env_clip
from sb3_grpo.classroom.compare.collect import collect
from sb3_grpo.classroom.compare.curves import Line
from sb3_grpo.classroom.compare.definition import MODE_RULE
from sb3_grpo.classroom.compare.results import Results, import_extra
from sb3_grpo.classroom.compare.statistics import MIN_SEEDS, RESAMPLES, iqm_interval, performance_profile
from sb3_grpo.classroom.pictures import drawing
from sb3_grpo.utils.files import replace_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Picture(NamedTuple):
    """
    A picture of the page.

    :param svg: the picture
    :param alt: the same in words
    :param file: name of its files next to the page, without a suffix
    """

    svg: str
    alt: str
    file: str


def make_report(folder: Path) -> Path:
    """
    Collect the runs of an experiment into ``runs.csv``, ``evaluations.csv`` and ``diagnostics.csv``, draw the pictures into
    ``figures/``, and write ``report.html``. May be called while runs are still in progress: it reports which are missing.

    :param folder: folder of the experiment
    :return: the page
    """
    jinja2 = import_extra("jinja2")
    results = collect(folder)
    report = Report(results)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("sb3_grpo.classroom.compare"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"number": findings.number, "as_it_is": import_extra("markupsafe").Markup}
    html = environment.get_template("report.html.jinja").render(report.content())
    path = folder / "report.html"
    replace_text(path, html, durable=False)
    return path


class Report:
    """Results, the statistics made of them, and the tables and pictures made of these."""

    def __init__(self, results: Results):
        self.results = results
        self.look = figures.styles(results.variants)
        self.envs = [env for env in results.envs if curves.with_runs(results, env)]
        self.findings = findings.judge([(env, pair) for env in self.envs for pair in findings.find_in(results, env)])
        # Environments that can be combined
        self.combined, self.scores = findings.normalised_scores(results)
        self.overall = []
        if len(self.combined) > 1:
            self.overall = findings.judge([(None, pair) for pair in findings.find_overall(self.scores)])

    @property
    def headline(self) -> str:
        """The result in a sentence."""
        return findings.headline(self.results, [*self.overall, *self.findings], self.combined)

    def content(self) -> dict[str, Any]:
        """What the template needs."""
        results, runs = self.results, self.results.planned
        console = Console(stderr=True)
        progress = track(self.envs, "Report", console=console, transient=True, disable=not console.is_terminal)
        everything = [*self.overall, *self.findings]
        scales = {env: findings.scale(results, env) for env in results.envs}
        with drawing():
            sections = [self._section(env) for env in progress]
            profiles = self._profiles()
        return {
            "experiment": results.experiment,
            "headline": self.headline,
            "few_seeds": findings.few_seeds(results, self.findings),
            "pairs": tables.pairs_table(results, everything),
            "wheres": {None: findings.all_together(results, self.combined)} if self.overall else {},
            "sections": sections,
            "combined": self.combined,
            "profiles": profiles,
            "overall_table": tables.overall_table(self.scores) if self.combined else None,
            "scales": tables.scale_table(scales, self.combined),
            "side_by_side": side_by_side.side_by_side(results),
            "cost": tables.cost_table(results),
            "networks": tables.network_statements(results),
            "notes": results.notes,
            "facts": list(facts_of(results)),
            "statuses": Counter(runs.status),
            "unfinished": list(runs[runs.status != "done"].fillna({"error": ""}).itertuples()),
            "seeds_each": seeds_each(results),
            "scored_by": _scored_by(results),
            "n_machines": len(machines_of(results)),
            # Not recorded by earlier versions
            "mode_rule": MODE_RULE if {*results.envs} <= {*results.experiment.get("main_modes", ())} else "",
            "look": {name: (place, style) for place, (name, style) in enumerate(self.look.items())},
            "css": (files("sb3_grpo.classroom.compare") / "assets" / "report.css").read_text("utf-8"),
            "min_seeds": MIN_SEEDS,
            "resamples": RESAMPLES,
        }

    def _section(self, env: str) -> dict[str, Any]:
        """What the page shows of an environment."""
        results, mode = self.results, self.results.main_mode(env)
        scores = {name: results.final_scores(env, name, mode) for name in curves.with_runs(results, env)}
        finals = {name: (values, iqm_interval([values])) for name, values in scores.items()}
        texts = {name: findings.interval_text(interval) for name, (_, interval) in finals.items()}
        ends = ", ".join(f"{name} {text}" for name, text in texts.items())
        unit, over_time = curves.over_time(results, env)
        drawn = {}
        for kind, xlabel, lines in (
            ("steps", "Environment steps", curves.over_steps(results, env)),
            ("time", f"Training time ({unit})", over_time),
        ):
            figure = figures.draw_lines(lines, self.look, xlabel, finals, tables.threshold_of(env))
            alt = f"{env}: return ({tables.MODE_WORDS[mode]}) against {xlabel.lower()}. Final returns: {ends}."
            drawn[kind] = self._picture(figure, f"curves_{kind}_{env}", env, alt)
        return {
            "env": env,
            "finals": texts,
            "curves": drawn,
            "logged": {title: self._logged(env, title, lines) for title, lines in curves.logged(results, env).items()},
            "final": tables.final_table(results, env),
            "efficiency": tables.efficiency_table(results, env),
            "clip": env_clip(results, env),
        }

    def _logged(self, env: str, title: str, lines: list[Line]) -> Picture:
        ends = ", ".join(f"{line.name} {findings.number(float(line.band.value[-1]))}" for line in lines)
        figure = figures.draw_lines(lines, self.look, "Environment steps", ylabel="")
        return self._picture(
            figure, f"{title.split(' (')[0]}_{env}", f"{env}: {title}", f"{env}: {title}. At the end: {ends}."
        )

    def _profiles(self) -> Picture | None:
        """Performance profiles over the environments that can be combined."""
        if not self.combined:
            return None
        where = self.combined[0] if len(self.combined) == 1 else findings.all_together(self.results, self.combined)
        lowest = max(-0.5, min(0.0, *(float(values.min()) for samples in self.scores.values() for values in samples)))
        # Hundredths, including 0.5
        thresholds = np.arange(np.floor(100 * lowest), 111) / 100
        profiles = {name: performance_profile(samples, thresholds) for name, samples in self.scores.items()}
        lines = [Line(name, thresholds, band, np.empty((0, len(thresholds)))) for name, band in profiles.items()]
        middle = int(np.abs(thresholds - 0.5).argmin())
        shares = ", ".join(f"{name} {band.value[middle]:.0%}" for name, band in profiles.items())
        alt = f"Performance profiles on {where}. Share of the runs with a normalised final score above 0.5: {shares}."
        figure = figures.draw_lines(lines, self.look, "Normalised score", ylabel="Share of runs")
        return self._picture(figure, "performance_profiles", f"Share of the runs above a score, {where}", alt)

    def _picture(self, figure: "Figure", name: str, title: str, alt: str) -> Picture:
        file = re.sub(r"[^\w.+-]+", "_", name)
        return Picture(figures.save(figure, self.results.folder / "figures" / file, title), alt, file)


def _scored_by(results: Results) -> str:
    """The actions that the scores are based on."""
    by_mode: dict[str, list[str]] = {}
    for env in results.envs:
        by_mode.setdefault(results.main_mode(env), []).append(env)
    texts = [
        tables.MODE_WORDS[mode] + (f" on {findings.listed(envs)}" if len(by_mode) > 1 else "")
        for mode, envs in by_mode.items()
    ]
    return "of the " + "; ".join(texts)


def facts_of(results: Results) -> Iterator[tuple[str, str]]:
    """
    :param results: results of the experiment
    :return: what was compared, and how: names of facts, and the facts
    """
    experiment, done = results.experiment, results.runs[results.runs.status == "done"]
    yield "Variants", ", ".join(_variant(variant) for variant in experiment["variants"])
    budgets = [f"{env}: {experiment['timesteps'][env]:,} steps" for env in experiment["envs"]]
    yield "Environments and budgets", ", ".join(budgets)
    same = (
        "the same for all variants" if len(done) == len(results.runs) else "not all of them for every variant and environment"
    )
    yield "Seeds", f"{len(experiment['seeds'])} ({', '.join(map(str, experiment['seeds']))}), {same}"
    yield (
        "Evaluations",
        f"{experiment['n_evaluations']} while training and one before, {experiment['n_eval_episodes']} episodes each; "
        f"{experiment['n_final_episodes']} episodes at the end; {' and '.join(results.modes)}",
    )
    yield "Steps", "all that the environments made, those of dropped groups included"
    machines = machines_of(results)
    if len(machines) > 1:
        yield "Machines", "; ".join(f"{count} runs on {machine}" for machine, count in machines.most_common())
    elif content := experiment.get("machine"):
        yield "Machine", _flat(content)
    if content := experiment.get("versions"):
        yield "Versions", _flat(content)
    if command := experiment.get("command"):
        yield "Command", ", then ".join(command.splitlines())


def seeds_each(results: Results) -> str:
    """
    :param results: results of the experiment
    :return: the number of finished seeds, in words
    """
    counts = [len(results.done(env, name)) for env in results.envs for name in results.variants]
    least, most = min(counts), max(counts)
    return f"{most} seed{'s' if most > 1 else ''} each" if least == most else f"{least} to {most} finished seeds each"


def machines_of(results: Results) -> Counter[str]:
    """
    :param results: results of the experiment
    :return: the machines of the runs, and how many each has made
    """
    return Counter(_flat(config["machine"]) for config in results.configs.values() if "machine" in config)


def _variant(variant: dict[str, Any]) -> str:
    changed = variant.get("hyperparams") or {}
    name = variant["name"] if variant["name"] == variant["algo"] else f"{variant['name']} ({variant['algo']})"
    return f"{name} with {_flat(changed)}" if changed else name


def _flat(content: Any) -> str:
    if not isinstance(content, dict):
        return str(content)
    return ", ".join(f"{key} {value if isinstance(value, str) else json.dumps(value)}" for key, value in content.items())
