"""
How often does the verifier "math" reward a wrong answer, or refuse a right one? It is compared with math-verify
(``pip install math-verify``) on answers that were written by others, without knowledge of its rules: as it is, with its
reading of texts but an exact comparison, and where both have to agree. A verdict that is not reached counts as wrong.

    python -m benchmarks.math_answers --pairs benchmarks/math_answers.jsonl --misjudged
"""

import argparse
import json
import logging
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import sympy
from math_verify import parse, verify

from sb3_grpo.envs.verifiers.formulas import _are_equal
from sb3_grpo.envs.verifiers.math_answers import make_math_verifier
from sb3_grpo.envs.verifiers.runner import Check, VerifierRunner

PAIRS = Path(__file__).with_name("math_answers.jsonl")


def _parsed(answer: str, reference: str) -> tuple[list[Any], list[Any]]:
    """
    :param answer: an answer
    :param reference: the right one, in a solution or alone
    :return: what math-verify reads in both. It only looks for formulas between dollar signs
    """
    reference = reference.rpartition("####")[2].strip()
    gold = reference if "\\boxed" in reference or "$" in reference.replace("\\$", "") else f"${reference}$"
    answers = parse(answer) or parse(f"${answer}$")
    return parse(gold), answers


def library(answer: str, reference: str) -> float:
    """
    :param answer: an answer
    :param reference: the right one
    :return: 1 if math-verify takes it for right
    """
    return float(verify(*_parsed(answer, reference)))


def library_exact(answer: str, reference: str) -> float:
    """
    :param answer: an answer
    :param reference: the right one
    :return: 1 if it is exactly equal to the reference, both as math-verify reads them
    """
    golds, answers = _parsed(answer, reference)

    def same(a: Any, b: Any) -> bool:
        return _are_equal(a, b) if isinstance(a, sympy.Basic) and isinstance(b, sympy.Basic) else bool(a == b)

    return float(any(same(a, b) for a in answers for b in golds))


def both(answer: str, reference: str) -> float:
    """
    :param answer: an answer
    :param reference: the right one
    :return: 1 if math-verify and the verifier "math" take it for right
    """
    return library(answer, reference) * make_math_verifier()(answer, reference)


COLUMNS: dict[str, Callable[[str, str], float]] = {
    "math-verify": library,
    "math": make_math_verifier(),
    "math-verify, exact": library_exact,
    "both": both,
}


def main() -> None:
    """Print a table, and what was misjudged."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=Path, default=PAIRS, help="lines of JSON with answer, reference, right and kind")
    parser.add_argument("--misjudged", action="store_true", help="print these pairs, too")
    parser.add_argument("--columns", nargs="+", default=list(COLUMNS), choices=COLUMNS)
    args = parser.parse_args()
    pairs = [json.loads(line) for line in args.pairs.read_text(encoding="utf-8").splitlines() if line.strip()]
    logging.disable()
    n_right = sum(pair["right"] for pair in pairs)
    print(f"{len(pairs)} pairs, {n_right} of them right")
    print(
        "| verifier | wrong, rewarded | right, refused | undecided | ms per answer (median) |\n| --- | --- | --- | --- | --- |"
    )
    for name in args.columns:
        misjudged, seconds, undecided = [], [], 0
        with closing(VerifierRunner(COLUMNS[name], trusted=False, time_limit=5.0, name=name)) as runner:
            runner.score([Check("1", "1", "")])  # starts the process
            for pair in pairs:
                begin = time.perf_counter()
                (verdict,) = runner.score([Check(pair["answer"], pair["reference"], "")])
                seconds.append(time.perf_counter() - begin)
                undecided += verdict.error is not None
                if (verdict.value == 1.0) != pair["right"]:
                    misjudged.append(pair)
        rewarded = sum(not pair["right"] for pair in misjudged)
        median = 1000 * statistics.median(seconds)
        print(f"| {name} | {rewarded} | {len(misjudged) - rewarded} | {undecided} | {median:.1f} |", flush=True)
        for pair in misjudged if args.misjudged else ():
            what = "refused " if pair["right"] else "REWARDED"
            print(f"    {what} {pair['kind']}: {pair['answer'][-150:]!r} for {pair['reference'][-80:]!r}")


if __name__ == "__main__":
    main()
