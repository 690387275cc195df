"""Conclusions that the final scores support for each pair of variants, in plain words."""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sb3_grpo.classroom.compare.results import Results
from sb3_grpo.classroom.compare.statistics import (
    CONFIDENCE,
    Comparison,
    Interval,
    Verdict,
    compare,
    holm,
    learned_p_value,
    normalise,
    verdict,
)


class Scale(NamedTuple):
    """
    The returns that are normalised to the scores 0 and 1.

    :param low: mean return of the untrained policies
    :param high: best mean final return over the seeds of a variant
    :param usable: whether any variant learned anything and ``high`` is above ``low``: otherwise, the distance between the
        two would be noise, or reverse the order of the variants
    """

    low: float
    high: float
    usable: bool


class Finding(NamedTuple):
    """
    The conclusion for two variants.

    :param env: the environment, None for all environments together
    :param comparison: comparison of two variants
    :param adjusted_p: p-value after Holm's correction
    :param verdict: the verdict
    :param sentence: the same in words
    """

    env: str | None
    comparison: Comparison
    adjusted_p: float
    verdict: Verdict
    sentence: str


def number(value: float, like: Sequence[float] = ()) -> str:
    """
    :param value: any number
    :param like: other numbers shown next to it
    :return: the number as text, with as many digits as are useful for the largest of them, "-" for NaN
    """
    if math.isnan(value):
        return "-"
    size = max(abs(x) for x in (value, *like))
    if size >= 1e12:
        return f"{value:.3g}"
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 0.1 or size == 0 else _digits_of_small(size)
    # With several numbers, nonzero ones must not look like zero: readers need to see whether an interval ends below or at it
    while digits < 4 and any(abs(x) > 1e-6 * size and not round(x, digits) for x in like):
        digits += 1
    text = f"{value:,.{digits}f}"
    if not like and "." in text:
        text = text.rstrip("0").rstrip(".")
    # No minus sign before zero
    return text if text.strip("-0.") else text.removeprefix("-")


def _digits_of_small(size: float) -> int:
    # Two significant digits. Anything beyond the eighth decimal is rounding error
    return min(max(4, 1 - math.floor(math.log10(size))), 8)


def interval_text(interval: Interval, least: float = 0.0) -> str:
    """
    :param interval: an estimate with its interval
    :param least: show digits as for a number of at least this size
    :return: "value (low to high)"
    """
    if not interval.known:
        return number(interval.value, (least,) if least else ())
    value, low, high = (number(x, (*interval, least)) for x in interval)
    return f"{value} ({low} to {high})"


def scale(results: Results, env: str) -> Scale:
    """
    :param results: results of the experiment
    :param env: an environment
    :return: the returns with which scores of this environment are normalised
    """
    mode = results.main_mode(env)
    finals = [scores for variant in results.variants if (scores := results.final_scores(env, variant, mode)).size]
    if not finals or results.grid(env, mode)[0] != 0:
        return Scale(math.nan, math.nan, False)
    rows = results.untrained(env, mode)
    # One policy per seed: the mean of several is closer to the middle than the score of a single one after training
    most = max(results.variants, key=lambda name: (rows.variant == name).sum())
    untrained = rows[rows.variant == most].return_mean.to_numpy(float)
    learned = learned_p_value(untrained, finals) <= 1.0 - CONFIDENCE
    low = float(rows.groupby("seed").return_mean.mean().mean())
    high = max(float(scores.mean()) for scores in finals)
    # Ranks do not reveal a single untrained policy that raises the mean of all
    return Scale(low, high, learned and high > low)


def common_envs(results: Results) -> tuple[list[str], list[str]]:
    """
    :param results: results of the experiment
    :return: the variants with a finished run, and the environments in which all of these have one
    """
    variants = [name for name in results.variants if any(len(results.done(env, name)) for env in results.envs)]
    return variants, [env for env in results.envs if all(len(results.done(env, name)) for name in variants)]


def normalised_scores(results: Results) -> tuple[list[str], dict[str, list[np.ndarray]]]:
    """
    :param results: results of the experiment
    :return: the environments that can be combined, and the normalised final scores of each variant on each of them
    """
    variants, envs = common_envs(results)
    scales = {env: scale(results, env) for env in envs}
    envs = [env for env in envs if scales[env].usable]
    return envs, {
        name: [
            normalise(results.final_scores(env, name, results.main_mode(env)), scales[env].low, scales[env].high)
            for env in envs
        ]
        for name in variants
    }


def find_in(results: Results, env: str) -> list[Comparison]:
    """
    :param results: results of the experiment
    :param env: an environment
    :return: a comparison for each pair of variants that have finished runs there
    """
    there = [name for name in results.variants if len(results.done(env, name))]
    scores = {name: results.final_scores(env, name, results.main_mode(env)) for name in there}
    return [compare(x, y, [scores[x]], [scores[y]]) for x, y in itertools.combinations(there, 2)]


def find_overall(scores: dict[str, list[np.ndarray]]) -> list[Comparison]:
    """
    :param scores: normalised scores of each variant on each environment
    :return: a comparison for each pair of variants
    """
    return [compare(x, y, scores[x], scores[y]) for x, y in itertools.combinations(scores, 2)]


def all_together(results: Results, envs: Sequence[str]) -> str:
    """
    :param results: results of the experiment
    :param envs: the environments that were combined
    :return: description of them
    """
    missing = [env for env in results.envs if env not in envs]
    if not missing:
        return f"all {len(envs)} environments"
    return f"{len(envs)} of {len(results.envs)} environments (without {', '.join(missing)})"


def judge(comparisons: Sequence[tuple[str | None, Comparison]], together: str = "") -> list[Finding]:
    """
    :param comparisons: all comparisons of a kind, each with its environment
    :param together: description of the environments for comparisons of several
    :return: the conclusion of each, given their number
    """
    adjusted = holm([comparison.p_value for _, comparison in comparisons])
    # Whether any difference, however clear, can be significant after the correction
    possible = min(holm([comparison.smallest_p for _, comparison in comparisons]), default=0.0) <= 1.0 - CONFIDENCE
    findings = []
    for (env, comparison), p_value in zip(comparisons, adjusted, strict=True):
        judged = verdict(comparison, p_value)
        where = f"on {env}" if env else f"over {together}"
        words = sentence(where, comparison, p_value, judged, len(comparisons), normalised=env is None)
        if judged is Verdict.HINT and not possible:
            words += " With so few seeds for so many comparisons, no difference could: more seeds are needed."
        findings.append(Finding(env, comparison, p_value, judged, words))
    return findings


def _p_text(p_value: float) -> str:
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.2g}"


def _counts(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(set(numbers)) == 1 else f"{min(numbers)} to {max(numbers)}"


def seen(comparison: Comparison) -> str:
    """
    :param comparison: comparison of two variants
    :return: sentence on how many of their runs beat each other: this is what was observed, not what other seeds would give
    """
    first, second, share = comparison.first, comparison.second, comparison.improvement.value
    if share < 0.5:
        first, second, share = second, first, 1.0 - share
    if share == 0.5:
        return f"{first} and {second} level"
    pairs = math.prod((comparison.n_first[0], comparison.n_second[0])) if len(comparison.n_first) == 1 else 0
    n_above = share * pairs
    ties = "" if n_above.is_integer() else " (ties count half)"
    return f"{first} ended above {second} in " + (
        f"{number(n_above)} of {pairs} pairs of runs{ties}" if pairs else f"{share:.0%}"
    )


def sentence(
    where: str, comparison: Comparison, adjusted_p: float, judged: Verdict, n_comparisons: int, normalised: bool
) -> str:
    """
    :param where: description of the environments
    :param comparison: comparison of two variants
    :param adjusted_p: its p-value after Holm's correction
    :param judged: the verdict
    :param n_comparisons: number of comparisons in the correction
    :param normalised: whether scores are normalised, over several environments
    :return: a statement in plain words
    """
    first, second, difference, improvement, *_ = comparison
    seeds = {first: comparison.n_first, second: comparison.n_second}
    unit = " normalised points" if normalised else ""
    if difference.value < 0:
        first, second = second, first
        difference = Interval(-difference.value, -difference.high, -difference.low)
        improvement = Interval(1 - improvement.value, 1 - improvement.high, 1 - improvement.low)
    counted = f"{_counts(seeds[first])} and {_counts(seeds[second])}"
    counted = f"seeds per environment: {counted}" if normalised else f"{counted} seeds"
    if judged is Verdict.TOO_FEW_SEEDS:
        return f"Seen {where}: {seen(comparison)}; {counted}."
    # Normalised scores are in or near [0, 1]: two digits
    value, low, high = (number(x, (*difference, 1.0 if normalised else 0.0)) for x in difference)
    numbers = (
        f"IQM {value}{unit} higher (95% interval {low} to {high}); a run of {first} beats a run of {second} "
        f"with probability {interval_text(improvement, 1.0)}; {counted}"
    )
    correction = "" if n_comparisons == 1 else f" after correction for {n_comparisons} comparisons"
    if judged is Verdict.DIFFERENCE:
        return f"{first} ended higher than {second} {where}: {numbers}. This holds{correction} ({_p_text(adjusted_p)})."
    if judged is Verdict.HINT:
        return (
            f"A hint only that {first} ended higher than {second} {where}: {numbers}. "
            f"This does not hold{correction} ({_p_text(adjusted_p)})."
        )
    if judged is Verdict.UNDECIDED:
        return (
            f"Undecided between {first} and {second} {where}: the two intervals and the test do not say the same. "
            f"For {first}, {numbers}. More seeds might tell."
        )
    if difference == (0.0, 0.0, 0.0):
        return (
            f"No difference shown between {first} and {second} {where}: "
            f"the runs that the IQM counts ended the same; {counted}. "
            f"If no higher return is possible there, only how fast they got there can tell them apart."
        )
    return (
        f"No difference shown between {first} and {second} {where}: for {first}, {numbers}. "
        f"That is no proof that they are equal: a true difference within the interval is compatible with these runs."
    )
