"""The page: one self-contained HTML file that needs no network. Without scripts, it is static but complete."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from sb3_grpo.classroom.compare.clips import Clip
from sb3_grpo.classroom.compare.definition import MODE_RULE
from sb3_grpo.classroom.compare.figures import Style
from sb3_grpo.classroom.compare.findings import Finding, Scale, number, seen
from sb3_grpo.classroom.compare.headline import scored_by
from sb3_grpo.classroom.compare.lecture import Fact
from sb3_grpo.classroom.compare.pictures import MODE_WORDS, File, Picture
from sb3_grpo.classroom.compare.results import Results, import_extra
from sb3_grpo.classroom.compare.statistics import MIN_SEEDS, RESAMPLES, Band, Interval, Verdict
from sb3_grpo.classroom.compare.stills import dash_array
from sb3_grpo.classroom.compare.tables import Table
from sb3_grpo.classroom.lecture.html import script_json, source_of
from sb3_grpo.utils.files import replace_text

if TYPE_CHECKING:
    from pathlib import Path

_ASSETS = files("sb3_grpo.classroom.compare") / "assets"


@dataclass
class EnvSection:
    """
    The section of one environment.

    :param env: the environment
    :param curves: its learning curves
    :param curve_files: the learning curves as files next to the page
    :param final: picture of the final return of every run
    :param diagnostics: values logged during training, if any
    :param tables: tables of the final scores by mode
    :param runs: table of the final return of every run
    :param efficiency: table of how fast returns rose
    :param findings: conclusions on each pair of variants
    :param clip: clip of its agents, if the runs have recorded it
    """

    env: str
    curves: Picture
    curve_files: list[File]
    final: Picture
    diagnostics: Picture | None
    tables: dict[str, Table]
    runs: Table
    efficiency: Table
    findings: list[Finding]
    clip: Clip | None


@dataclass
class Overall:
    """
    The section of all environments together.

    :param envs: the environments that were combined
    :param scales: the returns that are normalised to 0 and 1 on each environment
    :param pictures: pictures of all environments together
    :param profiles: normalised scores, and the share of runs above them for each variant
    :param intervals: IQM of the normalised scores of each variant, if there are several environments
    :param table: table of these scores
    :param findings: conclusions on each pair of variants, if there are several environments
    """

    envs: list[str]
    scales: dict[str, Scale]
    pictures: list[Picture] = field(default_factory=list)
    profiles: tuple[np.ndarray, dict[str, Band]] = field(default_factory=lambda: (np.empty(0), {}))
    intervals: dict[str, Interval] = field(default_factory=dict)
    table: Table | None = None
    findings: list[Finding] = field(default_factory=list)


@dataclass
class Page:
    """
    Content of the page.

    :param results: results of the experiment
    :param look: style of each variant
    :param headline: the result in a sentence
    :param few_seeds: how much so few seeds can show, empty if there are enough
    :param overall: section of all environments together
    :param sections: sections of the environments
    :param cost: speed, memory and sizes
    :param tuning: where hyperparameters come from
    :param networks: whether networks are the same
    :param lecture: differences between the variants
    :param data: data that the script draws
    """

    results: Results
    look: dict[str, Style]
    headline: str
    few_seeds: list[str]
    overall: Overall
    sections: list[EnvSection]
    cost: Table
    tuning: Table
    networks: list[str]
    lecture: tuple[list[str], list[tuple[str, list[list[Fact]]]]]
    data: dict[str, Any]


def write_page(page: Page) -> "Path":
    """
    :param page: content of the page
    :return: the file
    """
    jinja2, markupsafe = import_extra("jinja2"), import_extra("markupsafe")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("sb3_grpo.classroom.compare"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"number": number, "dashes": dash_array}
    results = page.results
    runs = results.planned
    main_modes = {page.results.main_mode(section.env) for section in page.sections}
    unfinished = runs[runs.status != "done"]
    style = "\n".join([_asset("uplot/uPlot.min.css"), _asset("report.css"), _colours(page.look)])
    script = "\n".join([_asset("uplot/uPlot.iife.min.js"), _asset("report.js")])
    html = environment.get_template("report.html.jinja").render(
        page=page,
        experiment=page.results.experiment,
        facts=list(_facts(page)),
        statuses=Counter(runs.status),
        unfinished=list(unfinished.fillna({"error": ""}).itertuples()),
        grid=_verdict_grid(page),
        scales=_scale_table(page.overall),
        n_env_findings=sum(len(section.findings) for section in page.sections),
        variant_numbers={name: place for place, name in enumerate(page.look)},
        min_seeds=MIN_SEEDS,
        resamples=RESAMPLES,
        mode_words=MODE_WORDS,
        main_modes=main_modes,
        mode_choices={**({"": "As scored"} if len(main_modes) > 1 else {}), **MODE_WORDS},
        scored_by=scored_by(page.results),
        seeds_each=_seeds_each(results),
        overshoot=_overshoot(results),
        n_machines=len(_machines(results)),
        # Not recorded by earlier versions
        mode_rule=MODE_RULE if {*page.results.envs} <= {*page.results.experiment.get("main_modes", ())} else "",
        style=markupsafe.Markup(style),
        script=markupsafe.Markup(script),
        # Only these sources are allowed, and nothing may be fetched: pictures are embedded in the page
        sources=markupsafe.Markup(f"img-src data:; style-src {source_of(style)}; script-src {source_of(script)}"),
        data=markupsafe.Markup(script_json(page.data)),
    )
    path = page.results.folder / "report.html"
    replace_text(path, html, durable=False)
    return path


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text("utf-8").strip()


def _colours(look: dict[str, Style]) -> str:
    """CSS class of each variant, with its colours on white and on black."""
    return "\n".join(
        f".v{place} {{ --of-light: {style.colour}; --of-dark: {style.dark}; }}" for place, style in enumerate(look.values())
    )


def _facts(page: Page) -> Iterator[tuple[str, str]]:
    """What was compared, and how."""
    experiment = page.results.experiment
    budgets = experiment["timesteps"]
    yield "Variants", ", ".join(_variant(variant) for variant in experiment["variants"])
    yield "Environments and budgets", ", ".join(f"{env}: {budgets[env]:,} steps" for env in experiment["envs"])
    seeds = experiment["seeds"]
    done = page.results.runs[page.results.runs.status == "done"]
    same = len(done) == len(page.results.runs)
    yield (
        "Seeds",
        f"{len(seeds)} ({', '.join(map(str, seeds))}), "
        + ("the same for all variants" if same else "not all of them for every variant and environment"),
    )
    yield (
        "Evaluations",
        f"{experiment['n_evaluations']} while training and one before, {experiment['n_eval_episodes']} episodes each; "
        f"{experiment['n_final_episodes']} episodes at the end; {' and '.join(page.results.modes)}",
    )
    yield "Steps", "all that the environments made, those of dropped groups included"
    machines = _machines(page.results)
    if len(machines) > 1:
        yield "Machines", "; ".join(f"{count} runs on {machine}" for machine, count in machines.most_common())
    elif content := experiment.get("machine"):
        yield "Machine", _flat(content)
    if content := experiment.get("versions"):
        yield "Versions", _flat(content)
    if command := experiment.get("command"):
        yield "Command", ", then ".join(command.splitlines())


def _seeds_each(results: Results) -> str:
    """How many finished runs there are of each variant on each environment."""
    counts = [len(results.done(env, name)) for env in results.envs for name in results.variants]
    least, most = min(counts), max(counts)
    return f"{most} seed{'s' if most > 1 else ''} each" if least == most else f"{least} to {most} finished seeds each"


def _overshoot(results: Results) -> float:
    """The largest share by which a finished run exceeds its budget."""
    done = results.runs[results.runs.status == "done"]
    return float((done.steps / done.env.map(results.experiment["timesteps"])).max()) - 1.0


def _machines(results: Results) -> Counter[str]:
    """The machines of the runs, and how many each has made."""
    return Counter(_flat(config["machine"]) for config in results.configs.values() if "machine" in config)


def _variant(variant: dict[str, Any]) -> str:
    changed = variant.get("hyperparams") or {}
    name = variant["name"] if variant["name"] == variant["algo"] else f"{variant['name']} ({variant['algo']})"
    return f"{name} with {_flat(changed)}" if changed else name


def _flat(content: Any) -> str:
    if not isinstance(content, dict):
        return str(content)
    return ", ".join(f"{key} {value if isinstance(value, str) else json.dumps(value)}" for key, value in content.items())


def _verdict_grid(page: Page) -> tuple[list[str], list[tuple[str, list[tuple[str, str]]]]]:
    """One row per pair of variants: the verdict on each environment and over all, in a word."""
    columns = [section.env for section in page.sections]
    findings = [finding for section in page.sections for finding in section.findings]
    if page.overall.findings:
        together = "all" if len(page.overall.envs) == len(columns) else f"{len(page.overall.envs)} of them"
        together += " together"
        columns.append(together)
        findings += page.overall.findings
    # Names may contain "and"
    pairs: dict[tuple[str, ...], dict[str, tuple[str, str]]] = {}
    for finding in findings:
        row = pairs.setdefault(finding.comparison[:2], {})
        row[finding.env or together] = (_short_verdict(finding), finding.verdict.name.lower())
    return columns, [(" and ".join(pair), [row.get(column, ("-", "")) for column in columns]) for pair, row in pairs.items()]


def _short_verdict(finding: Finding) -> str:
    higher = finding.comparison.first if finding.comparison.difference.value > 0 else finding.comparison.second
    if finding.verdict is Verdict.DIFFERENCE:
        return f"{higher} higher"
    if finding.verdict is Verdict.HINT:
        return f"hint: {higher} higher"
    if finding.verdict is Verdict.TOO_FEW_SEEDS:
        return f"seen: {seen(finding.comparison)}"
    return finding.verdict.value


def _scale_table(overall: Overall) -> Table:
    table = Table(["Environment", "0 is", "1 is", "Part of the aggregate"])
    for env, scale in overall.scales.items():
        table.rows.append([env, number(scale.low), number(scale.high), "yes" if env in overall.envs else "no"])
    return table
