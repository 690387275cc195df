"""The page: one HTML file without scripts that needs nothing else, not even a network."""

import base64
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sb3_grpo.compare.figures import Style
from sb3_grpo.compare.findings import Finding, Scale, interval_text, number
from sb3_grpo.compare.lecture import Fact
from sb3_grpo.compare.results import Results, import_extra
from sb3_grpo.compare.statistics import MIN_SEEDS, RESAMPLES, Interval, Verdict
from sb3_grpo.compare.tables import Table


@dataclass
class Picture:
    """
    :param path: of the files, without a suffix
    :param caption: what is seen
    """

    path: Path
    caption: str

    @property
    def source(self) -> str:
        """The picture itself, as an address."""
        content = self.path.with_name(f"{self.path.name}.svg").read_bytes()
        return "data:image/svg+xml;base64," + base64.b64encode(content).decode()


@dataclass
class EnvSection:
    """
    :param env: the environment
    :param pictures: by the part that they belong to
    :param final: tables of the final scores by mode
    :param efficiency: how fast returns rose
    :param findings: what can be said of each pair
    """

    env: str
    pictures: dict[str, list[Picture]]
    final: dict[str, Table]
    efficiency: Table
    findings: list[Finding]


@dataclass
class Overall:
    """
    :param envs: that were put together
    :param scales: what is 0 and 1 on each environment
    :param pictures: of all environments together
    :param intervals: IQM of the normalised scores of each variant, if there are several environments
    :param table: of the same
    :param findings: what can be said of each pair, if there are several environments
    """

    envs: list[str]
    scales: dict[str, Scale]
    pictures: list[Picture] = field(default_factory=list)
    intervals: dict[str, Interval] = field(default_factory=dict)
    table: Table | None = None
    findings: list[Finding] = field(default_factory=list)


@dataclass
class Page:
    """
    All that is on the page.

    :param results: of the experiment
    :param mode: of the evaluations that the statements are about
    :param look: style of each variant
    :param overall: all environments together
    :param sections: each environment
    :param cost: speed, memory and sizes
    :param tuning: where hyperparameters come from
    :param networks: whether networks are the same
    :param lecture: what tells the variants apart
    """

    results: Results
    mode: str
    look: dict[str, Style]
    overall: Overall
    sections: list[EnvSection]
    cost: Table
    tuning: Table
    networks: list[str]
    lecture: tuple[list[str], list[tuple[str, list[list[Fact]]]]]


def write_page(page: Page) -> Path:
    """
    :param page: all that is on it
    :return: the file
    """
    jinja2 = import_extra("jinja2")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("sb3_grpo.compare"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"number": number, "interval": interval_text}
    runs = page.results.runs
    unfinished = runs[runs.status != "done"]
    html = environment.get_template("report.html.jinja").render(
        page=page,
        experiment=page.results.experiment,
        facts=list(_facts(page)),
        statuses=Counter(runs.status),
        unfinished=list(unfinished.fillna({"error": ""}).itertuples()),
        grid=_verdict_grid(page),
        scales=_scale_table(page.overall),
        n_env_findings=sum(len(section.findings) for section in page.sections),
        few_seeds=MIN_SEEDS,
        resamples=RESAMPLES,
        Verdict=Verdict,
    )
    path = page.results.folder / "report.html"
    path.write_text(html, encoding="utf-8")
    return path


def _facts(page: Page) -> Iterator[tuple[str, str]]:
    """What was compared, and how."""
    experiment = page.results.experiment
    budgets = experiment["timesteps"]
    yield "Variants", ", ".join(_variant(variant) for variant in experiment["variants"])
    yield "Environments and budgets", ", ".join(f"{env}: {budgets[env]:,} steps" for env in experiment["envs"])
    seeds = experiment["seeds"]
    yield "Seeds", f"{len(seeds)} ({', '.join(map(str, seeds))}), the same for all variants"
    yield (
        "Evaluations",
        f"{experiment['n_evaluations']} while training and one before, {experiment['n_eval_episodes']} episodes each; "
        f"{experiment['n_final_episodes']} episodes at the end; {' and '.join(page.results.modes)}",
    )
    yield "Steps", "all that the environments made, those of dropped groups included"
    for key in ("machine", "versions"):
        if content := experiment.get(key):
            yield key.capitalize(), _flat(content)
    if command := experiment.get("command"):
        yield "Command", ", then ".join(command.splitlines())


def _variant(variant: dict[str, Any]) -> str:
    changed = variant.get("hyperparams") or {}
    name = variant["name"] if variant["name"] == variant["algo"] else f"{variant['name']} ({variant['algo']})"
    return f"{name} with {_flat(changed)}" if changed else name


def _flat(content: Any) -> str:
    if not isinstance(content, dict):
        return str(content)
    return ", ".join(f"{key} {value if isinstance(value, str) else json.dumps(value)}" for key, value in content.items())


def _verdict_grid(page: Page) -> tuple[list[str], list[tuple[str, list[tuple[str, str]]]]]:
    """A row for each pair: what can be said of it on each environment and over all, in a word."""
    columns = [section.env for section in page.sections]
    findings = [finding for section in page.sections for finding in section.findings]
    if page.overall.findings:
        together = "all" if len(page.overall.envs) == len(columns) else f"{len(page.overall.envs)} of them"
        together += " together"
        columns.append(together)
        findings += page.overall.findings
    pairs: dict[str, dict[str, tuple[str, str]]] = {}
    for finding in findings:
        row = pairs.setdefault(f"{finding.comparison.first} and {finding.comparison.second}", {})
        row[finding.env or together] = (_short_verdict(finding), finding.verdict.name.lower())
    return columns, [(pair, [row.get(column, ("-", "")) for column in columns]) for pair, row in pairs.items()]


def _short_verdict(finding: Finding) -> str:
    higher = finding.comparison.first if finding.comparison.difference.value > 0 else finding.comparison.second
    if finding.verdict is Verdict.DIFFERENCE:
        return f"{higher} higher"
    if finding.verdict is Verdict.HINT:
        return f"hint: {higher} higher"
    return finding.verdict.value


def _scale_table(overall: Overall) -> Table:
    table = Table(["Environment", "0 is", "1 is", "Part of the aggregate"])
    for env, scale in overall.scales.items():
        table.rows.append([env, number(scale.low), number(scale.high), "yes" if env in overall.envs else "no"])
    return table
