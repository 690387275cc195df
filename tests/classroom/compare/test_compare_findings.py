"""What the report of a comparison says of the variants."""

import re
import shutil

import numpy as np
import pytest

pytest.importorskip("rliable")

from compare_data import curve_to, write_experiment

from sb3_grpo.classroom.compare.collect import collect
from sb3_grpo.classroom.compare.findings import (
    few_seeds,
    find_in,
    find_overall,
    headline,
    interval_text,
    judge,
    normalised_scores,
    number,
    scale,
)
from sb3_grpo.classroom.compare.statistics import Interval, compare

ENV = "CartPole-v1"


def all_findings(results):
    """Findings on each environment, or on all together, and the environments that were combined."""
    combined, scores = normalised_scores(results)
    if len(combined) > 1:
        return judge([(None, pair) for pair in find_overall(scores)]), combined
    return judge([(env, pair) for env in results.envs for pair in find_in(results, env)]), combined


SHIFTED = np.arange(10.0)


@pytest.mark.parametrize(
    "first, second, n_comparisons, claim, numbers",
    [
        (SHIFTED, SHIFTED + 100, 1, "dapo ended higher", r"\+100 \(.* to .*\), 100% above, p < 0\.001"),
        (SHIFTED + 100, SHIFTED, 1, "ppo ended higher", r"\+100 \(.* to .*\), 100% above, p < 0\.001"),
        # Of 100 comparisons of equals, some look like this one
        (SHIFTED, SHIFTED + 6, 100, "hint: dapo higher", r"\+6\.00 .*"),
        (SHIFTED, SHIFTED[::-1] + 0.1, 1, "no difference shown", r"dapo \+0\.10 \(-.*"),
        (np.full(5, 500.0), np.full(5, 500.0), 1, "no difference shown", "the runs that the IQM counts ended the same"),
        (SHIFTED[:3], SHIFTED[:3] + 10, 1, "too few seeds", "dapo above ppo in 9 of 9 pairs of runs"),
        # Of 4 pairs, 1 is the other way round, and 1 is level
        (np.array([1.0, 4.0]), np.array([0.0, 4.0]), 1, "too few seeds", r"ppo above dapo in 2\.5 of 4 pairs of runs"),
        (np.full(3, 9.0), np.full(3, 9.0), 1, "too few seeds", "runs level"),
    ],
)
def test_what_is_said_of_a_pair(first, second, n_comparisons, claim, numbers):
    pair = compare("ppo", "dapo", [first], [second])
    finding = judge([(ENV, pair)] + [(ENV, pair._replace(p_value=0.9))] * (n_comparisons - 1))[0]
    assert finding.claim == claim
    assert re.fullmatch(numbers, finding.numbers)


def test_a_median_that_is_equal_is_no_lead():
    """Four of ten runs are above the others, but not those that the IQM counts."""
    (finding,) = judge([(ENV, compare("ppo", "dapo", [np.full(8, 500.0)], [np.array([500.0] * 6 + [400.0] * 2)]))])
    assert finding.numbers.startswith("equal IQMs (0.0 to ")


FINALS = {"ppo": 100.0, "ppo_mask": 100.0, "grpo": 100.5, "dapo": 400.0, "trpo": 50.0}


@pytest.mark.parametrize(
    "envs, names, seeds, expected",
    [
        ([ENV], ["grpo", "dapo"], 8, "On CartPole-v1, dapo ended higher than grpo."),
        # About PPO where it is there
        (
            [ENV],
            ["ppo", "grpo", "dapo", "trpo"],
            8,
            "On CartPole-v1, dapo ended higher than ppo; ppo ended higher than trpo; "
            "no difference is shown between ppo and grpo; dapo ended higher than all others.",
        ),
        ([ENV], ["ppo", "grpo"], 8, "On CartPole-v1, no difference is shown between ppo and grpo."),
        (
            [ENV],
            ["ppo", "grpo", "dapo"],
            3,
            "On CartPole-v1, every run of dapo ended above every run of ppo; the runs of ppo and grpo overlap; "
            "the seeds are too few for a claim.",
        ),
        # Also where it is SB3-Contrib's
        (
            [ENV],
            ["ppo_mask", "grpo", "dapo"],
            3,
            "On CartPole-v1, every run of dapo ended above every run of ppo_mask; the runs of ppo_mask and grpo overlap; "
            "the seeds are too few for a claim.",
        ),
        ([ENV, "Pendulum-v1"], ["ppo", "dapo"], 5, "Over both environments together, dapo ended higher than ppo."),
        # With one seed none is shown to have learned: nothing can be combined
        (
            [ENV, "Pendulum-v1"],
            ["ppo", "dapo"],
            1,
            "On CartPole-v1 and Pendulum-v1, every run of dapo ended above every run of ppo; "
            "the seeds are too few for a claim.",
        ),
        ([ENV], ["dapo"], 5, "There are runs of one variant only, and so nothing to compare."),
    ],
)
def test_headline(tmp_path, envs, names, seeds, expected):
    def curve(env, variant, seed):
        return curve_to(FINALS[variant] + seed)

    write_experiment(tmp_path, curve, envs=envs, variants={name: name for name in names}, seeds=seeds)
    results = collect(tmp_path)
    assert headline(results, *all_findings(results)) == expected


def test_how_many_seeds_a_claim_takes(tmp_path):
    variants = {"ppo": "ppo", "grpo": "grpo", "dapo": "dapo"}
    write_experiment(tmp_path, lambda env, variant, seed: curve_to(FINALS[variant] + seed), variants=variants, seeds=3)
    results = collect(tmp_path)
    # 3 comparisons * 2 / C(10, 5) is below 5%, 3 * 2 / C(8, 4) is not
    assert few_seeds(results, all_findings(results)[0]) == (
        "So few seeds support no claim on a single environment: chance alone separates the runs of two equal variants in 10% "
        "of such experiments. A claim on any of 3 pairs takes at least 5 seeds of each variant."
    )


def test_a_lucky_untrained_policy_does_not_turn_the_order_round(tmp_path):
    """Seed 0 balances the pole before it learns: the mean of the untrained policies is above that of every variant."""

    def curve(env: str, variant: str, seed: int) -> list[float]:
        return curve_to((60.0 if variant == "ppo" else 90.0) + seed, first=9.0 if seed else 500.0)

    write_experiment(tmp_path, curve, envs=(ENV, "Acrobot-v1"), seeds=5)
    results = collect(tmp_path)
    assert scale(results, ENV).low > scale(results, ENV).high
    assert normalised_scores(results)[0] == []
    assert "ppo ended higher" not in headline(results, *all_findings(results))


def test_statements_about_several_environments_say_which(tmp_path):
    def curve(env: str, variant: str, seed: int) -> list[float]:
        if env == "MountainCar-v0":
            return [-200.0] * 3
        return [10.0 + seed, 20.0, (400.0 if variant == "dapo" else 50.0) + seed]

    write_experiment(tmp_path, curve, envs=(ENV, "Pendulum-v1", "MountainCar-v0"), seeds=5)
    results = collect(tmp_path)
    where = "Over 2 of 3 environments (without MountainCar-v0) together, "
    assert headline(results, *all_findings(results)) == f"{where}dapo ended higher than ppo."


def test_number():
    numbers = (0.0, -1e-9, 0.25, 12.34, -133.4, 4545.0, 0.01234, -2.345e-5)
    assert [number(x) for x in numbers] == ["0", "0", "0.25", "12.3", "-133", "4,545", "0.012", "-0.000023"]
    assert number(2e-5, (1e-5, 3e-5)) == "0.000020"
    assert number(float("nan")) == "-"
    assert number(-1e30) == "-1e+30" and number(2e10) == "20,000,000,000"
    # As many digits as the numbers beside it
    assert number(3.2, (120.0,)) == "3"
    # An interval that includes 0 and one that does not must look different
    assert interval_text(Interval(0.01, -0.0004, 0.02)) == "0.0100 (-0.0004 to 0.0200)"
    assert interval_text(Interval(0.01, -1e-17, 0.02)) == "0.010 (0.000 to 0.020)"
    assert interval_text(Interval(250.0, -0.3, 500.0)) == "250.0 (-0.3 to 500.0)"


def test_normalised_between_untrained_and_the_best_mean(tmp_path):
    write_experiment(tmp_path, lambda env, variant, seed: [10.0, 50.0, 110.0 if variant == "dapo" else 60.0], seeds=3)
    results = collect(tmp_path)
    assert scale(results, ENV) == (10.0, 110.0, True)
    envs, scores = normalised_scores(results)
    assert envs == [ENV]
    assert scores["dapo"][0].tolist() == [1.0] * 3 and scores["ppo"][0].tolist() == [0.5] * 3


def test_environment_without_runs_of_a_variant_is_left_out_of_the_aggregate(tmp_path):
    write_experiment(tmp_path, lambda env, variant, seed: curve_to(FINALS[variant] + seed), envs=(ENV, "Pendulum-v1"), seeds=3)
    shutil.rmtree(tmp_path / "runs" / "Pendulum-v1" / "ppo")
    envs, scores = normalised_scores(collect(tmp_path))
    assert envs == [ENV] and list(scores) == ["ppo", "dapo"]


def test_where_nobody_learned_scores_are_not_normalised(tmp_path):
    # Seeds 0, 1, 2: untrained -0.2, -0.3, -0.4; at the end a little above that by chance, or far below
    def curve(env: str, variant: str, seed: int) -> list[float]:
        untrained = -0.3 - 0.1 * (seed - 1)
        return [untrained, -10.0, -20.0 if variant == "dapo" else untrained + 0.02]

    write_experiment(tmp_path, curve, seeds=3)
    results = collect(tmp_path)
    assert not scale(results, ENV).usable
    assert normalised_scores(results)[0] == []


def test_untrained_policies_that_variants_share_count_once(tmp_path):
    """Four copies of the same three scores are not twelve."""
    finals = {"ppo": 3.0, "trpo": 2.0, "grpo": 2.5, "dapo": 2.4}

    def curve(env: str, variant: str, seed: int) -> list[float]:
        return [2.0 + seed, 0.0, finals[variant] + (0.0, 2.0, 0.8)[seed]]

    write_experiment(tmp_path, curve, variants={name: name for name in finals}, seeds=3)
    results = collect(tmp_path)
    assert scale(results, ENV).low == pytest.approx(3.0)
    assert not scale(results, ENV).usable
