"""The table that usually contrasts PPO, GRPO and DAPO, filled with measurements from the runs."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from sb3_grpo.classroom.compare.findings import number
from sb3_grpo.classroom.compare.results import Results
from sb3_grpo.classroom.compare.tables import median
from sb3_grpo.console import ALGORITHMS

# The first key that an algorithm logs measures how far an update moved from the policy that acted
KL_KEYS = ("train/approx_kl", "train/kl_divergence_loss")
_WITH_CRITIC = ("a2c", "ppo", "ppo_lstm", "trpo")


class Fact(NamedTuple):
    """
    Part of a cell of the lecture's table.

    :param text: its text
    :param measured: whether it was measured in these runs rather than taken from the configuration
    """

    text: str
    measured: bool


def lecture_table(results: Results) -> tuple[list[str], list[tuple[str, list[list[Fact]]]]]:
    """
    :param results: results of the experiment
    :return: the variants, and for each row its title and a list of facts per variant
    """
    names = [name for name in results.variants if any(len(results.done(env, name)) for env in results.envs)]
    rows: dict[str, Callable[[_Described], list[Fact]]] = {
        "Value model": _value_model,
        "Models in memory": _models_in_memory,
        "Advantage": _advantage,
        "KL handling": _kl_handling,
        "Clipping": _clipping,
        "Dead groups": _dead_groups,
        "Length bias": _length_bias,
        "Samples per start": _samples_per_start,
    }
    described = [_Described(results, name) for name in names]
    return names, [(title, [cell(variant) for variant in described]) for title, cell in rows.items()]


class _Described:
    """Facts about one variant over all environments."""

    def __init__(self, results: Results, name: str):
        self.results, self.name = results, name
        self.algo = next(variant["algo"] for variant in results.experiment["variants"] if variant["name"] == name)
        self.envs = [env for env in results.envs if len(results.done(env, name))]
        self.grouped = self.algo in ALGORITHMS
        # For other algorithms, it is not known here which networks judge and which act
        self.described = self.grouped or self.algo in _WITH_CRITIC

    def medians(self, column: str) -> dict[str, float]:
        """Median of a column of runs.csv for each environment."""
        medians = {env: median(self.results.done(env, self.name)[column]) for env in self.envs}
        return {env: value for env, value in medians.items() if not np.isnan(value)}

    def log_means(self, key: str) -> dict[str, float]:
        """Mean of a logged value for each environment: over the training of each run, then over the runs."""
        means = {}
        for env in self.envs:
            values = self.results.diagnostic(env, self.name, key)
            values = values[~np.isnan(values).all(axis=1)] if values.size else values
            if values.size:
                means[env] = float(np.nanmean(values, axis=1).mean())
        return means

    def setting(self, name: str, words: Mapping[str, str] | None = None) -> str:
        """Value of a hyperparameter in the models, "None" if they lack it, with the environments if values differ."""
        values = {env: self.results.hyperparams(env, self.name).get(name, "None") for env in self.envs}
        return self.in_each(lambda env: (words or {}).get(values[env], values[env]), "; " if words else ", ")

    def in_each(self, text_of: Callable[[str], str], separator: str) -> str:
        """A text for each environment, with the environments if texts differ."""
        by_text: dict[str, list[str]] = {}
        for env in self.envs:
            by_text.setdefault(text_of(env), []).append(env)
        if len(by_text) == 1:
            return next(iter(by_text))
        return separator.join(f"{text} ({', '.join(envs)})" for text, envs in by_text.items())


def _spread(values: Iterable[float], form: Callable[[float], str] = number) -> str:
    """Mean over the environments, and the range if they differ."""
    values = list(values)
    texts = {form(value) for value in values}
    if len(texts) == 1:
        return texts.pop()
    return f"{form(float(np.mean(values)))} ({form(min(values))} to {form(max(values))} by environment)"


def _percent(value: float) -> str:
    return f"{value:.1%}" if value < 0.0995 else f"{value:.0%}"


def _value_model(variant: _Described) -> list[Fact]:
    critic, total = variant.medians("n_critic_parameters"), variant.medians("n_parameters")
    if not critic or not variant.described:
        return []
    if not any(critic.values()):
        regression = (
            [Fact("a regression on the states, new in each update", False)] if "gae" in variant.setting("advantage") else []
        )
        return [Fact("no: 0 parameters", True), *regression]
    share = [critic[env] / total[env] for env in critic if env in total]
    return [Fact(f"yes: {_spread(critic.values())} parameters, {_spread(share, _percent)} of all", True)]


def _models_in_memory(variant: _Described) -> list[Fact]:
    policies, critic = variant.medians("n_policies_in_memory"), variant.medians("n_critic_parameters")
    if not policies or not variant.described:
        return []
    facts = []
    for count in sorted(set(policies.values())):
        parts = ["policy"] + (["reference policy"] if count > 1 else []) + (["critic"] if any(critic.values()) else [])
        where = [env for env, value in policies.items() if value == count]
        suffix = "" if len(where) == len(policies) else f" on {', '.join(where)}"
        facts.append(Fact(f"{len(parts)} ({', '.join(parts)}){suffix}", True))
    return [*facts, Fact("rewards come from the environment", False)]


def _advantage(variant: _Described) -> list[Fact]:
    if variant.grouped:
        words = {
            "gae": f"GAE with λ = {variant.setting('gae_lambda')}, values by regression,",
            "return_to_go": "return to go",
            "outcome": "whole episode's return",
            "process": "process rewards",
        }
        kind, divisor = variant.setting("advantage", words), variant.setting("advantage_scale")
        baseline = "the other members' mean" if variant.setting("leave_one_out") == "True" else "the group's mean"
        return [Fact(f"{kind} minus {baseline}; divided by the standard deviation of: {divisor}", False)]
    if not variant.described:
        return []
    return [Fact(f"per step, GAE with λ = {variant.setting('gae_lambda')}", False)]


def _kl_handling(variant: _Described) -> list[Fact]:
    facts = []
    if variant.grouped:
        coefficient = variant.setting("kl_coef")
        off = coefficient in ("0", "0.0")
        place = "in the reward of each step" if variant.setting("kl_estimator") == "k1_in_reward" else "loss term"
        facts.append(Fact("no reference policy" if off else f"{place}, coefficient {coefficient}", False))
    limit = variant.setting("target_kl")
    if variant.algo == "trpo":
        facts.append(Fact(f"constraint of each update: at most {limit}", False))
    elif limit != "None":
        facts.append(Fact(f"an update ends early beyond {limit}", False))
    elif variant.described and not variant.grouped:
        facts.append(Fact("none", False))
    for key in KL_KEYS:
        if values := variant.log_means(key):
            facts.append(Fact(f"{_spread(values.values())} per update, from the policy that acted", True))
            break
    if values := variant.log_means("train/kl_ref"):
        facts.append(Fact(f"{_spread(values.values())} from the reference policy", True))
    return facts


def _clipping(variant: _Described) -> list[Fact]:
    if variant.setting("clip_range") in ("None", "inf"):
        return [Fact("none", False)] if variant.described else []
    low, high = variant.setting("clip_range"), variant.setting("clip_range_high")
    high = low if high == "None" else high
    facts = [Fact(f"symmetric, {low}" if low == high else f"low {low}, high {high}", False)]
    lows, highs = variant.log_means("train/clip_fraction_low"), variant.log_means("train/clip_fraction_high")
    if lows and highs:
        texts = [_spread(values.values(), _percent) for values in (lows, highs)]
        facts.append(Fact(f"steps clipped at the low side {texts[0]}, at the high side {texts[1]}", True))
    elif both := variant.log_means("train/clip_fraction"):
        facts.append(Fact(f"ratio outside the range in {_spread(both.values(), _percent)} of the steps", True))
    return facts


def _dead_groups(variant: _Described) -> list[Fact]:
    if not variant.grouped:
        return [Fact("has no groups", False)] if variant.described else []
    discarded = variant.medians("discarded_fraction")

    def rule(env: str) -> str:
        if variant.results.hyperparams(env, variant.name).get("dynamic_sampling") != "True":
            return "kept, with advantage zero"
        # Nothing is dropped from an update that takes n_steps
        return "dropped and replaced" if env in discarded else "kept, but their steps do not count: the rollout is extended"

    facts = [Fact(variant.in_each(rule, "; "), False)]
    if dead := variant.log_means("group/dead_fraction"):
        share = _spread(dead.values(), _percent)
        facts.insert(0, Fact(f"{share} of the groups drawn for an update, mean over the updates", True))
    if discarded:
        share = _spread(discarded.values(), _percent)
        facts.append(Fact(f"{share} of all steps were dropped with them (some updates draw groups several times)", True))
    return facts


def _length_bias(variant: _Described) -> list[Fact]:
    if not variant.described:
        return []
    if not variant.grouped:
        return [Fact("none: every step weighs the same", False)]
    words = {
        "episode": "yes: mean over each episode first, a step of a long episode weighs less",
        "step": "none: mean over all steps",
    }

    def described(env: str) -> str:
        average = variant.results.hyperparams(env, variant.name).get("loss_average", "None")
        is_number = average.replace(".", "", 1).isdecimal()
        return words.get(average, f"none: sum over each episode, divided by {average}" if is_number else average)

    return [Fact(variant.in_each(described, "; "), False)]


def _samples_per_start(variant: _Described) -> list[Fact]:
    samples = variant.medians("samples_per_start")
    return [Fact(_spread(samples.values()), False)] if samples else []
