"""Text of the first screen: the result in a sentence, and how much a few seeds can show."""

import math
from collections.abc import Sequence

from sb3_grpo.classroom.compare.findings import Finding, all_together, interval_text
from sb3_grpo.classroom.compare.pictures import MODE_WORDS
from sb3_grpo.classroom.compare.results import Results
from sb3_grpo.classroom.compare.statistics import CONFIDENCE, MIN_SEEDS, Interval, Verdict

# With more differences than this, only their number is stated
_NAMED = 3


def headline(
    results: Results,
    findings: Sequence[Finding],
    learned: Sequence[str],
    intervals: dict[str, dict[str, Interval]],
) -> str:
    """
    :param results: results of the experiment
    :param findings: all findings, on single environments and on several together
    :param learned: the environments that were combined
    :param intervals: final returns of each variant, by environment
    :return: the result in a sentence
    """
    if not findings:
        if len({name for by_name in intervals.values() for name in by_name}) > 1:
            return f"On no environment are there runs of two variants yet, and so nothing to compare. {_ends(intervals)}"
        only = "There is" if len(results.variants) == 1 else "So far there are runs of"
        return f"{only} one variant only, and nothing to compare it with. {_ends(intervals)}"
    overall = [finding for finding in findings if finding.env is None]
    if overall:
        single = [finding for finding in findings if finding.env is not None]
        return f"{_result(f'Over {all_together(results, learned)}', overall)} {_on_single(single)}".strip()
    by_env = {env: [finding for finding in findings if finding.env == env] for env in intervals}
    return " ".join(_result(f"On {env}", of_env) for env, of_env in by_env.items() if of_env)


def scored_by(results: Results) -> str:
    """
    :param results: results of the experiment
    :return: description of the actions that the scores are based on
    """
    by_mode: dict[str, list[str]] = {}
    for env in results.envs:
        by_mode.setdefault(results.main_mode(env), []).append(env)
    if len(by_mode) == 1:
        return f"of {MODE_WORDS[next(iter(by_mode))]}"
    return "; ".join(f"on {_listed(envs)} of {MODE_WORDS[mode]}" for mode, envs in by_mode.items())


def _ends(intervals: dict[str, dict[str, Interval]]) -> str:
    ends = [f"{name} {interval_text(each)} on {env}" for env, by_name in intervals.items() for name, each in by_name.items()]
    return f"It ended at: {', '.join(ends)}."


def _on_single(findings: Sequence[Finding]) -> str:
    """Sentence on the differences on single environments: their number, or their names if they are few."""
    clear = [finding for finding in findings if finding.verdict is Verdict.DIFFERENCE]
    if not clear:
        return ""
    by_env: dict[str, list[Finding]] = {}
    for finding in clear:
        by_env.setdefault(str(finding.env), []).append(finding)
    named = "; ".join(f"on {env}, {_beaten(of_env, Verdict.DIFFERENCE)}" for env, of_env in by_env.items())
    counted = f"On single environments a difference is shown for {_pairs(len(clear), len(findings))}"
    return f"{counted}: {named}." if len(clear) <= _NAMED else f"{counted}."


def _result(where: str, findings: Sequence[Finding]) -> str:
    """The findings of one environment, or of several together, in a sentence."""
    if all(finding.verdict is Verdict.TOO_FEW_SEEDS for finding in findings):
        return _seen(where, findings)
    higher = _beaten(findings, Verdict.DIFFERENCE)
    hints = _beaten(findings, Verdict.HINT)
    n_open = sum(finding.verdict is Verdict.UNDECIDED for finding in findings)
    n_same = sum(finding.verdict is Verdict.NO_DIFFERENCE for finding in findings)
    n_few = sum(finding.verdict is Verdict.TOO_FEW_SEEDS for finding in findings)
    clauses = [f"{where}, {higher}"] if higher else []
    if hints:
        clauses.append(f"there are hints only that {hints}" if higher else f"{where}, there are hints only that {hints}")
    if n_same:
        shown = _pairs(n_same, len(findings))
        if clauses:
            clauses.append(f"no difference is shown for {shown}")
        else:
            names = list(dict.fromkeys(name for finding in findings for name in finding.comparison[:2]))
            between = f"between {_listed(names)}" if n_same == len(findings) else f"for {shown}"
            clauses.append(f"{where}, no difference is shown {between}")
    if n_open:
        clauses.append(("" if clauses else f"{where}, ") + f"{_pairs(n_open, len(findings))} stay undecided")
    if n_few:
        clauses.append(f"for {_pairs(n_few, len(findings))} the seeds are too few")
    return "; ".join(clauses) + "."


def _seen(where: str, findings: Sequence[Finding]) -> str:
    """Describe the runs if their number does not support any claim."""
    winners: dict[str, list[str]] = {}
    n_overlap = 0
    for finding in findings:
        first, second, _, improvement, *_ = finding.comparison
        if improvement.value in (0.0, 1.0):
            best, other = (first, second) if improvement.value == 1.0 else (second, first)
            winners.setdefault(best, []).append(other)
        else:
            n_overlap += 1
    clauses = [f"every run of {best} ended above every run of {_listed(others)}" for best, others in winners.items()]
    if n_overlap:
        names = list(dict.fromkeys(name for finding in findings for name in finding.comparison[:2]))
        overlap = f"runs of {_listed(names)}" if n_overlap == len(findings) else f"runs of {_pairs(n_overlap, len(findings))}"
        clauses.append(f"the {overlap} ended level or overlap")
    return f"Seen {where[0].lower()}{where[1:]}: {'; '.join(clauses)}."


def _beaten(findings: Sequence[Finding], verdict: Verdict) -> str:
    """ "dapo ended higher than ppo and trpo, grpo higher than trpo", for the findings with this verdict."""
    winners: dict[tuple[str, ...], list[str]] = {}
    by_winner: dict[str, list[str]] = {}
    for finding in findings:
        if finding.verdict is verdict:
            first, second, difference, *_ = finding.comparison
            best, other = (first, second) if difference.value > 0 else (second, first)
            by_winner.setdefault(best, []).append(other)
    # Group variants that beat the same ones
    for best, others in by_winner.items():
        winners.setdefault(tuple(others), []).append(best)
    ordered = sorted(winners.items(), key=lambda each: -len(each[0]))
    return ", and ".join(f"{_listed(best)} ended higher than {_listed(others)}" for others, best in ordered)


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _pairs(count: int, total: int) -> str:
    return f"{count} of {total} pairs"


def few_seeds(results: Results, findings: Sequence[Finding]) -> list[str]:
    """
    :param results: results of the experiment
    :param findings: all findings
    :return: how much so few seeds can show and how many a claim would need, stated once; empty if there are enough
    """
    said = []
    few = [finding for finding in findings if finding.verdict is Verdict.TOO_FEW_SEEDS]
    if few:
        counts = {count for finding in few for part in finding.comparison[-2:] for count in part}
        least = min(counts)
        chance = max(finding.comparison.smallest_p for finding in few)
        total = sum(finding.env is not None for finding in findings)
        n_few = sum(finding.env is not None for finding in few)
        # The same seeds may be enough over several environments together, and other variants may have more
        where = " on a single environment" if n_few == total else f" of {_pairs(n_few, total)} on single environments"
        where = "" if len(few) == len(findings) else where
        claim = "A claim" if total == 1 else f"A claim on any of the {total} pairs on single environments"
        # Two seeds against ten are too few for an interval, although chance rarely separates them
        often = (
            f": chance alone would put every run of one above every run of the other in {chance:.0%} of such experiments"
            if chance > 1.0 - CONFIDENCE
            else ""
        )
        said.append(
            f"With {least} seed{'s' if least > 1 else ''} of {'each' if len(counts) == 1 else 'a'} variant nothing is claimed"
            f"{where}{often}. {claim} takes at least {seeds_needed(total)} seeds of each variant where their runs do not "
            "overlap, and more where they do."
        )
    # Environments with the same variants in one clause
    by_names: dict[tuple[str, ...], list[str]] = {}
    for env in results.envs:
        names = tuple(name for name in results.variants if 0 < len(results.done(env, name)) < MIN_SEEDS)
        by_names.setdefault(names, []).append(env)
    n_envs = len(results.envs)
    clauses = [
        _listed(names) + (f" on {_listed(envs)}" if len(envs) < n_envs else "") for names, envs in by_names.items() if names
    ]
    if clauses:
        said.append(
            f"Fewer than {MIN_SEEDS} seeds of {', and of '.join(clauses)}: no interval is given, it would mean nothing."
        )
    return said


def seeds_needed(n_comparisons: int) -> int:
    """
    :param n_comparisons: number of comparisons in Holm's correction
    :return: the smallest number of seeds with which two variants with non-overlapping runs can be told apart
    """
    seeds = MIN_SEEDS
    while n_comparisons * 2.0 / math.comb(2 * seeds, seeds) >= 1.0 - CONFIDENCE:
        seeds += 1
    return seeds
