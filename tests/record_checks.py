"""Recorded updates, computed again by the package's functions from what was played."""

from typing import Any

import numpy as np
import pytest
import torch as th

from sb3_grpo.common.advantages import discounted_returns_to_go, group_advantages, td_residuals
from sb3_grpo.common.kl import kl_estimate
from sb3_grpo.common.losses import clipped_surrogate, cut_off, step_weights
from sb3_grpo.groups.group import live_groups


def padded(record: dict[str, Any], key: str) -> tuple[th.Tensor, th.Tensor]:
    """
    :param record: An update
    :param key: Of a column of its steps
    :return: (E, T) the column, a row for each episode, and which entries exist
    """
    episodes, column = record["episodes"], record["steps"][key]
    longest = max(each["n_steps"] for each in episodes)
    values = th.zeros((len(episodes), longest), dtype=th.float64)
    mask = th.zeros((len(episodes), longest), dtype=th.bool)
    for row, each in enumerate(episodes):
        first, n_steps = each["first"], each["n_steps"]
        values[row, :n_steps] = th.tensor(column[first : first + n_steps], dtype=th.float64)
        mask[row, :n_steps] = True
    return values, mask


def near(values: Any, tolerance: float) -> Any:
    return pytest.approx(np.asarray(values), rel=tolerance, abs=tolerance)


def check_record(record: dict[str, Any], tolerance: float) -> None:
    """
    :param record: An update of PPO, or of GRPO with whole groups and ``advantage="outcome"``
    :param tolerance: For rounding
    """
    (check_gae if record["algorithm"] == "PPO" else check_groups)(record, tolerance)
    check_optimizer_steps(record, tolerance)


def check_gae(record: dict[str, Any], tolerance: float) -> None:
    settings, steps = record["settings"], record["steps"]
    rewards, mask = padded(record, "reward")
    values = padded(record, "value")[0]
    last = th.tensor([each.get("next_value", 0.0) for each in record["episodes"]], dtype=th.float64)
    residuals = td_residuals(rewards[None], values[None], mask[None], settings["gamma"], last[None])
    advantages = discounted_returns_to_go(residuals, mask[None], settings["gamma"] * settings["gae_lambda"])[0][mask]
    assert steps["advantage"] == near(advantages, tolerance)
    assert steps["return"] == near(advantages + values[mask], tolerance)


def check_groups(record: dict[str, Any], tolerance: float) -> None:
    settings, n_groups = record["settings"], len(record["groups"])
    rewards, mask = (each.unflatten(0, (n_groups, -1)) for each in padded(record, "reward"))
    advantages = group_advantages(
        rewards,
        mask,
        kind=settings["advantage"],
        gamma=settings["gamma"],
        leave_one_out=settings["leave_one_out"],
        scale=settings["advantage_scale"],
    )
    assert record["steps"]["advantage"] == near(advantages[mask], tolerance)
    returns = th.tensor([group["returns"] for group in record["groups"]], dtype=th.float64)
    assert returns.tolist() == near(discounted_returns_to_go(rewards, mask, settings["gamma"])[..., 0], tolerance)
    assert [group["mean"] for group in record["groups"]] == near(returns.mean(1), tolerance)
    assert [group["std"] for group in record["groups"]] == near(returns.std(1), tolerance)
    assert [group["dead"] for group in record["groups"]] == (~live_groups(returns)).tolist()
    episode = th.repeat_interleave(th.tensor([each["n_steps"] for each in record["episodes"]]))
    weights = step_weights(episode, len(record["episodes"]), settings["loss_average"])
    assert record["steps"]["weight"] == near(weights, tolerance)


def check_optimizer_steps(record: dict[str, Any], tolerance: float) -> None:
    settings, steps = record["settings"], record["steps"]
    old = th.tensor(steps["log_prob"], dtype=th.float64)
    before, seen = old, {}
    for each in record["optimizer_steps"]:
        part = th.tensor(each["steps"])
        seen.setdefault(each["epoch"], []).extend(each["steps"])
        advantages = th.tensor(steps["advantage"], dtype=th.float64)[part]
        if settings.get("normalize_advantage"):
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        assert each.get("advantage", advantages.tolist()) == near(advantages, tolerance)
        log_ratio = before[part] - old[part]
        assert each.get("ratio", log_ratio.exp().tolist()) == near(log_ratio.exp(), tolerance)
        low, high = settings["clip_low"], settings["clip_high"]
        below, above = cut_off(log_ratio.exp(), advantages, low, high)
        assert (each["below"], each["above"]) == (part[below].tolist(), part[above].tolist())
        losses = clipped_surrogate(log_ratio, advantages, low, high)
        if "weight" in steps:
            n_in_epoch = sum(other["epoch"] == each["epoch"] for other in record["optimizer_steps"])
            losses = losses * th.tensor(steps["weight"], dtype=th.float64)[part] * n_in_epoch * len(part)
        assert each["policy_loss"] == near(losses.mean(), tolerance)
        assert each["approx_kl"] == near(kl_estimate(old[part], before[part], "k3").mean(), tolerance)
        before = th.tensor(each["log_prob"], dtype=th.float64)
    # Each epoch is a pass on all steps
    assert all(sorted(of_epoch) == list(range(len(old))) for of_epoch in seen.values())
    assert len(seen) == settings["n_epochs"]
