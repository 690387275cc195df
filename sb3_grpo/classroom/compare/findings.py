"""Conclusions that the final scores support for each pair of variants, in plain words."""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sb3_grpo.classroom.compare.results import Results
from sb3_grpo.classroom.compare.statistics import (
    CONFIDENCE,
    MIN_SEEDS,
    Comparison,
    Interval,
    Verdict,
    compare,
    holm,
    learned_p_value,
    normalise,
    verdict,
)

# In the RL Zoo's names
_PPO = ("ppo", "ppo_lstm", "ppo_mask")


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
    """

    env: str | None
    comparison: Comparison
    adjusted_p: float
    verdict: Verdict

    @property
    def ahead(self) -> tuple[str, str]:
        """The variant with the higher IQM, of equals that whose runs ended higher more often, and the other one."""
        first, second, difference, improvement, *_ = self.comparison
        turned = difference.value < 0.0 or (difference.value == 0.0 and improvement.value < 0.5)
        return (second, first) if turned else (first, second)

    @property
    def claim(self) -> str:
        """Who is ahead, as far as the data say."""
        if self.verdict is Verdict.DIFFERENCE:
            return f"{self.ahead[0]} ended higher"
        if self.verdict is Verdict.HINT:
            return f"hint: {self.ahead[0]} higher"
        return self.verdict.value

    @property
    def numbers(self) -> str:
        """How sure that is: the numbers that the claim rests on, or what was seen if it takes more seeds."""
        _, _, difference, improvement, _, _, n_first, n_second = self.comparison
        best, other = self.ahead
        share = improvement.value if best == self.comparison.first else 1.0 - improvement.value
        if self.verdict is Verdict.TOO_FEW_SEEDS:
            if share == 0.5:
                return "runs level"
            if share < 0.5:
                best, other, share = other, best, 1.0 - share
            n_pairs = sum(map(math.prod, zip(n_first, n_second, strict=True)))
            counted = f"{number(share * n_pairs)} of {n_pairs}" if len(n_first) == 1 else f"{share:.0%} of all"
            return f"{best} above {other} in {counted} pairs of runs"
        if difference == (0.0, 0.0, 0.0):
            return "the runs that the IQM counts ended the same"
        if best == self.comparison.second:
            difference = Interval(-difference.value, -difference.high, -difference.low)
        # Normalised scores are in or near [0, 1]: two digits
        value, low, high = (number(x, (*difference, 0.0 if self.env else 1.0)) for x in difference)
        p_text = "p < 0.001" if self.adjusted_p < 0.001 else f"p = {self.adjusted_p:.2g}"
        # The claim may have named the one that is ahead
        name = "" if self.verdict in (Verdict.DIFFERENCE, Verdict.HINT) else f"{best} "
        gap = f"{name}+{value}" if difference.value else "equal IQMs"
        return f"{gap} ({low} to {high}), {share:.0%} above, {p_text}"


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
    # Of small numbers two digits that count, but nothing beyond the eighth decimal: it is rounding error
    small = 2 if size == 0 else min(1 - math.floor(math.log10(size)), 8)
    digits = 0 if size >= 100 else 1 if size >= 10 else max(2, small)
    # With several numbers, nonzero ones must not look like zero: readers need to see whether an interval ends below or at it
    while digits < 4 and any(abs(x) > 1e-6 * size and not round(x, digits) for x in like):
        digits += 1
    text = f"{value:,.{digits}f}"
    if not like and "." in text:
        text = text.rstrip("0").rstrip(".")
    # No minus sign before zero
    return text if text.strip("-0.") else text.removeprefix("-")


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


def normalised_scores(results: Results) -> tuple[list[str], dict[str, list[np.ndarray]]]:
    """
    :param results: results of the experiment
    :return: the environments that can be combined, and the normalised final scores of each variant on each of them
    """
    variants = [name for name in results.variants if any(len(results.done(env, name)) for env in results.envs)]
    envs = [env for env in results.envs if all(len(results.done(env, name)) for name in variants)]
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
        return "both environments" if len(envs) == 2 else f"all {len(envs)} environments"
    return f"{len(envs)} of {len(results.envs)} environments (without {', '.join(missing)})"


def judge(comparisons: Sequence[tuple[str | None, Comparison]]) -> list[Finding]:
    """
    :param comparisons: all comparisons of a kind, each with its environment
    :return: the conclusion of each, given their number
    """
    adjusted = holm([comparison.p_value for _, comparison in comparisons])
    return [
        Finding(env, comparison, p_value, verdict(comparison, p_value))
        for (env, comparison), p_value in zip(comparisons, adjusted, strict=True)
    ]


def headline(results: Results, findings: Sequence[Finding], combined: Sequence[str]) -> str:
    """
    :param results: results of the experiment
    :param findings: all findings, on single environments and on several together
    :param combined: the environments that were combined
    :return: the result in a sentence: over all environments together, or on each of them if none can be combined
    """
    if not findings:
        if sum(any(len(results.done(env, name)) for env in results.envs) for name in results.variants) > 1:
            return "On no environment are there runs of two variants yet, and so nothing to compare."
        return "There are runs of one variant only, and so nothing to compare."
    if together := [finding for finding in findings if finding.env is None]:
        return f"Over {all_together(results, combined)} together, {_result(results, together)}."
    envs_of: dict[str, list[str]] = {}
    for env in dict.fromkeys(str(finding.env) for finding in findings):
        result = _result(results, [finding for finding in findings if finding.env == env])
        envs_of.setdefault(result, []).append(env)
    return " ".join(f"On {listed(envs)}, {result}." for result, envs in envs_of.items())


def about_ppo(results: Results, findings: Sequence[Finding]) -> list[Finding]:
    """
    :param results: results of the experiment
    :param findings: findings on the same environments
    :return: those about PPO, if exactly one variant is PPO (of SB3 or SB3-Contrib) and has been compared, or else all
    """
    names = [variant["name"] for variant in results.experiment["variants"] if variant["algo"] in _PPO]
    about = [finding for finding in findings if len(names) == 1 and names[0] in finding.comparison[:2]]
    return about or list(findings)


def _result(results: Results, findings: Sequence[Finding]) -> str:
    """The findings of one environment, or of several together, in a sentence."""
    about = about_ppo(results, findings)
    by_verdict = {judged: [finding for finding in about if finding.verdict is judged] for judged in Verdict}
    few = by_verdict[Verdict.TOO_FEW_SEEDS]
    apart = [finding for finding in few if finding.comparison.improvement.value in (0.0, 1.0)]
    clauses = []
    for ahead, words in (
        (by_verdict[Verdict.DIFFERENCE], "{} ended higher than {}"),
        (by_verdict[Verdict.HINT], "a hint only that {} ended higher than {}"),
        (apart, "every run of {} ended above every run of {}"),
    ):
        clauses += [words.format(*each) for each in _grouped([finding.ahead for finding in ahead])]
    for level, words in (
        ([finding for finding in few if finding not in apart], "the runs of {} overlap"),
        (by_verdict[Verdict.NO_DIFFERENCE], "no difference is shown between {}"),
        (by_verdict[Verdict.UNDECIDED], "it is undecided between {}"),
    ):
        if level:
            clauses.append(words.format(_between([finding.comparison[:2] for finding in level], len(about))))
    if few:
        some = "" if len(few) == len(about) else f" on {len(few)} of {len(about)} pairs"
        clauses.append(f"the seeds are too few for a claim{some}")
    names = {name for finding in findings for name in finding.comparison[:2]}
    if len(names) > 2 and len(few) < len(about):
        wins = [finding.ahead[0] for finding in findings if finding.verdict is Verdict.DIFFERENCE]
        best_of_all = next((name for name in names if wins.count(name) == len(names) - 1), None)
        if best_of_all is None:
            clauses.append("which one is best is undecided")
        elif len(about) < len(findings):
            clauses.append(f"{best_of_all} ended higher than all others")
    return "; ".join(clauses)


def _grouped(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """("a and b", "c and d") where each of the first ended higher than each of the others."""
    by_winner: dict[str, list[str]] = {}
    for best, other in pairs:
        by_winner.setdefault(best, []).append(other)
    winners: dict[tuple[str, ...], list[str]] = {}
    for best, others in by_winner.items():
        winners.setdefault(tuple(others), []).append(best)
    ordered = sorted(winners.items(), key=lambda each: -len(each[0]))
    return [(listed(best), listed(others)) for others, best in ordered]


def _between(pairs: Sequence[tuple[str, str]], total: int) -> str:
    """The variants of the pairs: "a and b or c" if a is in each of them, or the number of the pairs if they are many."""
    common = set(pairs[0]).intersection(*pairs[1:])
    if len(pairs) == 1:
        return listed(pairs[0])
    if common:
        (name,) = common
        return f"{name} and {listed([other for pair in pairs for other in pair if other != name], 'or')}"
    if len(pairs) == total:
        return listed(list(dict.fromkeys(name for pair in pairs for name in pair)))
    return f"{len(pairs)} of {total} pairs"


def listed(names: Sequence[str], word: str = "and") -> str:
    """
    :param names: names
    :param word: the word before the last one
    :return: the names in a sentence
    """
    return f" {word} ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def few_seeds(results: Results, findings: Sequence[Finding]) -> str:
    """
    :param results: results of the experiment
    :param findings: findings on single environments
    :return: how many seeds a claim on a single environment needs, empty if there are enough
    """
    few = [finding.comparison for finding in findings if finding.verdict is Verdict.TOO_FEW_SEEDS]
    said = ""
    if few:
        chance = max(comparison.smallest_p for comparison in few)
        often = f": chance alone separates the runs of two equal variants in {chance:.0%} of such experiments"
        pairs = f"any of {len(findings)} pairs" if len(findings) > 1 else "a pair"
        said = (
            f"So few seeds support no claim on a single environment{often if chance > 1.0 - CONFIDENCE else ''}. A claim on "
            f"{pairs} takes at least {seeds_needed(len(findings))} seeds of each variant."
        )
    if any(0 < len(results.done(env, name)) < MIN_SEEDS for env in results.envs for name in results.variants):
        said += f" No interval is given below {MIN_SEEDS} seeds."
    return said.strip()


def seeds_needed(n_comparisons: int) -> int:
    """
    :param n_comparisons: number of comparisons in Holm's correction
    :return: the smallest number of seeds with which two variants with non-overlapping runs can be told apart
    """
    seeds = MIN_SEEDS
    while n_comparisons * 2.0 / math.comb(2 * seeds, seeds) >= 1.0 - CONFIDENCE:
        seeds += 1
    return seeds
