"""
Values that the functions in the lecture's JavaScript must return, computed with PyTorch, Gymnasium, Stable-Baselines3 and this
package: ``python -m tests.classroom.lecture.golden`` writes ``golden.json``.
"""

import itertools
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import CategoricalDistribution
from torch import nn
from torch.nn import functional as F

from sb3_grpo.classroom.lecture.examples import clipped
from sb3_grpo.classroom.lecture.page import HERE
from sb3_grpo.common.advantages import SCALES, group_advantages
from sb3_grpo.common.kl import KL_ESTIMATORS, exact_kl, kl_estimate, kl_loss
from sb3_grpo.common.losses import LossInputs, clipped_surrogate, policy_losses, step_weights
from sb3_grpo.groups.group import live_groups

GOLDEN = Path(__file__).with_name("golden.json")
DIGITS = 10


def tensor(values: Any) -> th.Tensor:
    return th.tensor(values, dtype=th.float64)


def categorical(logits: th.Tensor) -> CategoricalDistribution:
    return CategoricalDistribution(logits.shape[-1]).proba_distribution(logits)


# The KL penalty


def kl_values(*shares: float) -> list[float]:
    """The exact divergence; for each estimator its values for three actions, their mean and standard deviation."""
    log_prob, ref_log_prob = (tensor(part).log().log_softmax(0) for part in (shares[:3], shares[3:]))
    values = exact_kl(categorical(log_prob[None]), categorical(ref_log_prob[None])).tolist()
    for estimator in KL_ESTIMATORS:
        estimates = kl_estimate(log_prob, ref_log_prob, estimator)
        mean = (log_prob.exp() * estimates).sum()
        spread = (log_prob.exp() * (estimates - mean).square()).sum().sqrt()
        values += [*estimates.tolist(), mean.item(), spread.item()]
    return values


def kl_gradients(stale: float, *shares: float) -> list[float]:
    """Gradients of both exact divergences, of the estimators as used in the package's loss, and as they stand."""
    logits, ref_logits = tensor(shares[:3]).log().requires_grad_(), tensor(shares[3:]).log()
    log_prob, ref_log_prob = logits.log_softmax(0), ref_logits.log_softmax(0)
    old_log_prob = ((1.0 - stale) * logits + stale * ref_logits).detach().log_softmax(0)
    policy, reference = categorical(logits[None]), categorical(ref_logits[None])
    losses = [exact_kl(policy, reference).sum(), exact_kl(reference, policy).sum()]
    losses += [(old_log_prob.exp() * kl_loss(log_prob, old_log_prob, ref_log_prob, each)).sum() for each in KL_ESTIMATORS]
    losses += [(old_log_prob.exp() * kl_estimate(log_prob, ref_log_prob, each)).sum() for each in KL_ESTIMATORS]
    return th.cat([th.autograd.grad(loss, logits, retain_graph=True)[0] for loss in losses]).tolist()


def reset(success: float, coefficient: float, resets: int) -> list[float]:
    """The best policy, pi_ref exp(R / beta), with the last of some references: its success, and its KL."""
    ref_logits = best = tensor([success, 1.0 - success]).log()
    for _ in range(resets + 1):
        ref_logits, best = best, best + tensor([1.0, 0.0]) / coefficient
    kl = exact_kl(categorical(best[None]), categorical(ref_logits[None]))
    return [best.softmax(0)[0].item(), kl.item()]


# Losses after DAPO


def pushes(ratio: float, advantage: float, low: float, high: float, old: float) -> list[float]:
    """Minus the gradient of each loss over the log of the ratio."""
    found = []
    for name in ("clip", "cispo", "dppo", "importance_sampling", "sapo"):
        log_ratio, old_log_prob = tensor([ratio]).log().requires_grad_(), tensor([old]).log()
        none, of_one = th.zeros(1, dtype=th.long), tensor([advantage])
        steps = LossInputs(log_ratio, old_log_prob + log_ratio, old_log_prob, of_one, low, high, None, none, none, of_one)
        found.append(-th.autograd.grad(policy_losses(name, steps)[0].sum(), log_ratio)[0].item())
    return found


# Groups, and the weights of steps


def group(size: int, ddof: int, leave_one_out: int, scale: int, *rewards: float) -> list[float]:
    table = tensor(rewards).reshape(-1, size, 1)
    advantages = group_advantages(table, table == table, leave_one_out=bool(leave_one_out), scale=SCALES[scale])
    # The package divides by the sample standard deviation
    n = {"group": size, "batch": len(rewards), "none": None}[SCALES[scale]]
    return (advantages * (1.0 if ddof or n is None else math.sqrt(n / (n - 1)))).flatten().tolist()


def weights_of_steps(lengths: list[int], average: str) -> list[float]:
    episode = th.repeat_interleave(th.arange(len(lengths)), th.tensor(lengths))
    return step_weights(episode, len(lengths), average).double().tolist()


# Two states: staying pays 1 or 2, going pays nothing


def facts(theta: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor, th.Tensor]:
    """
    :param theta: (2,) logits of staying
    :return: Probabilities of staying and going (2, 2), values (2,), visits (2,) and advantages (2, 2)
    """
    actions = th.stack([theta, th.zeros(2)], 1).softmax(1)
    stay, go = actions.T
    system = th.eye(2).double() - 0.9 * th.stack([th.stack([stay[0], go[0]]), th.stack([go[1], stay[1]])])
    values = th.linalg.solve(system, stay * tensor([1.0, 2.0]))
    visits = th.linalg.solve(system.T, tensor([1.0, 0.0]))
    advantages = th.stack([tensor([1.0, 2.0]) + 0.9 * values, 0.9 * values.flip(0)], 1) - values[:, None]
    return actions, values, visits, advantages


def kls(theta: th.Tensor, new: th.Tensor) -> th.Tensor:
    return exact_kl(*(categorical(th.stack([each, th.zeros(2)], 1)) for each in (theta, new)))


def slope_and_fisher(theta: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
    """Gradient of the return, and the Hessian of the mean KL."""
    slope: Any = th.autograd.functional.jacobian(lambda each: facts(each)[1][0], theta)
    shares = 0.1 * facts(theta)[2]
    fisher: Any = th.autograd.functional.hessian(lambda new: shares @ kls(theta, new), theta)
    return slope, fisher


def two_states(first: float, second: float) -> list[float]:
    theta = tensor([first, second])
    _, values, visits, advantages = facts(theta)
    slope, fisher = slope_and_fisher(theta)
    return [values[0].item(), *visits.tolist(), *advantages.flatten().tolist(), *slope.tolist(), *fisher.diag().tolist()]


def vanilla_step(first: float, second: float, rate: float) -> list[float]:
    theta = tensor([first, second])
    return (theta + rate * slope_and_fisher(theta)[0]).clamp(-6, 6).tolist()


def natural_step(first: float, second: float, delta: float) -> list[float]:
    theta = tensor([first, second])
    slope, fisher = slope_and_fisher(theta)
    direction = th.linalg.solve(fisher, slope)
    return (theta + (2 * delta / (slope @ direction)).sqrt() * direction).clamp(-6, 6).tolist()


def scaled_step(first: float, second: float, delta: float) -> list[float]:
    theta = tensor([first, second])
    slope, fisher = slope_and_fisher(theta)
    return (theta + (2 * delta / (slope @ fisher @ slope)).sqrt() * slope).clamp(-6, 6).tolist()


def clipped_step(first: float, second: float, rate: float, epsilon: float) -> list[float]:
    old = tensor([first, second])
    actions, _, visits, advantages = facts(old)
    new = old.clone().requires_grad_()
    for _ in range(10):
        log_ratio = (facts(new)[0].log() - actions.log()).flatten()
        losses = clipped_surrogate(log_ratio, advantages.flatten(), epsilon, epsilon)
        loss = ((visits[:, None] * actions).flatten() * losses).sum()
        new = (new - rate / 10 * th.autograd.grad(loss, new)[0]).detach().requires_grad_()
    return new.clamp(-6, 6).tolist()


def step_facts(first: float, second: float, *to: float) -> list[float]:
    """Mean and largest KL, the surrogate, its lower bound, the return."""
    old, new = tensor([first, second]), tensor(to)
    _, values, visits, advantages = facts(old)
    each_kl, expected = kls(old, new), values[0] + visits @ (facts(new)[0] * advantages).sum(1)
    worst = 4 * advantages.abs().max() * 0.9 / 0.1**2 * each_kl.max()
    mean = (0.1 * visits) @ each_kl
    return th.stack([mean, each_kl.max(), expected, expected - worst, facts(new)[1][0]]).tolist()


# The agents that learn in the page


def advantages_of_groups(groups: list[list[list[float]]], settings: dict[str, Any]) -> list[float]:
    members = [tensor(member) for each in groups for member in each]
    rewards = nn.utils.rnn.pad_sequence(members, True, math.nan).unflatten(0, (len(groups), -1))
    mask, rewards = ~rewards.isnan(), rewards.nan_to_num()
    return group_advantages(rewards, mask, **settings)[mask].tolist()


def gae_of_steps(rewards: list[float], values: list[float], ends: list[bool], gamma: float, gae_lambda: float) -> list[float]:
    """Stable-Baselines3's advantages, in double precision."""
    n = len(rewards)
    buffer = RolloutBuffer(n, spaces.Box(-1, 1, (1,)), spaces.Discrete(2), gae_lambda=gae_lambda, gamma=gamma)
    buffer.rewards, buffer.values, buffer.advantages = np.array([rewards]).T, np.array([values[:n]]).T, np.zeros((n, 1))
    buffer.episode_starts = np.array([[False, *ends[:-1]]], np.float64).T
    buffer.compute_returns_and_advantage(tensor(values[n:]), np.array(ends[-1:]))
    return buffer.advantages[:, 0].tolist()


def network(*sizes: int) -> nn.Sequential:
    layers = [[nn.Linear(n, m), nn.Tanh()] for n, m in itertools.pairwise(sizes)]
    return nn.Sequential(*[layer for each in layers for layer in each][:-1]).double()


def learn(case: dict[str, Any]) -> list[float]:
    """Three steps of Adam on two minibatches: the losses, the last gradient, and the weights after it."""
    algorithm = case["algorithm"]
    actor, critic = network(4, 3, 2, 2), network(4, 3, 2, 1)
    parameters = [*actor.parameters(), *(critic.parameters() if algorithm == "PPO" else ())]
    nn.utils.vector_to_parameters(tensor(case["weights"]), parameters)
    optimizer, losses = th.optim.Adam(parameters, lr=0.1, eps=1e-5), []
    gradient = th.zeros(0)
    for part in case["parts"]:
        optimizer.zero_grad()
        loss = loss_of(algorithm, actor, critic, {key: tensor(value)[part] for key, value in case["batch"].items()})
        loss.backward()
        gradient = nn.utils.parameters_to_vector(each.grad for each in parameters)
        nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()
        losses.append(loss.item())
    return [*losses, *gradient.tolist(), *nn.utils.parameters_to_vector(parameters).tolist()]


def loss_of(algorithm: str, actor: nn.Module, critic: nn.Module, part: dict[str, th.Tensor]) -> th.Tensor:
    log_probs = actor(part["observations"]).log_softmax(1)
    log_prob, entropy = log_probs.gather(1, part["actions"].long()[:, None])[:, 0], -(log_probs.exp() * log_probs).sum(1)
    log_ratio, advantages = log_prob - part["oldLogs"], part["advantages"]
    if algorithm == "PPO":
        # stable_baselines3.PPO.train
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        value_loss = F.mse_loss(part["returns"], critic(part["observations"])[:, 0])
        return clipped_surrogate(log_ratio, advantages, 0.2, 0.2).mean() - 0.01 * entropy.mean() + 0.5 * value_loss
    clip_high, kl_coef = (0.28, 0.0) if algorithm == "DAPO" else (0.2, 0.04)
    losses = clipped_surrogate(log_ratio, advantages, 0.2, clip_high) - 0.01 * entropy
    return (2 * part["weights"] * (losses + kl_coef * kl_estimate(log_prob, part["refLogs"], "k3"))).sum()


def learning_case(algorithm: str, seed: int) -> dict[str, Any]:
    """
    :param algorithm: PPO, GRPO or DAPO
    :param seed: Seed of networks and steps
    :return: An argument of :func:`learn`
    """
    generator, n = th.Generator().manual_seed(seed), 14

    def uniform(*size: int, reach: float = 1.0) -> th.Tensor:
        return reach * (2 * th.rand(*size, generator=generator, dtype=th.float64) - 1)

    batch = {"observations": uniform(n, 4), "actions": th.randint(2, (n,), generator=generator)}
    weights = uniform(55 if algorithm == "PPO" else 29)
    actor = network(4, 3, 2, 2)
    nn.utils.vector_to_parameters(weights[:29], actor.parameters())
    log_prob = actor(batch["observations"]).log_softmax(1).gather(1, batch["actions"][:, None])[:, 0].detach()
    batch |= {"oldLogs": log_prob + uniform(n, reach=0.4), "refLogs": log_prob + uniform(n, reach=0.4)}
    batch |= {"advantages": uniform(n, reach=2.0), "returns": uniform(n, reach=2.0)}
    batch["weights"] = (0.5 + th.rand(n, generator=generator, dtype=th.float64)) / n
    halves = [list(range(7)), list(range(7, n))]
    return {
        "algorithm": algorithm,
        "weights": weights.tolist(),
        "batch": {key: value.tolist() for key, value in batch.items()},
        "parts": [halves[0], halves[1], halves[0]],
    }


def cartpole(state: list[float], action: int) -> list[float]:
    env: Any = gym.make("CartPole-v1").unwrapped
    env.reset(seed=0)
    env.state = np.array(state)
    observation, reward, terminated, *_ = env.step(action)
    return [*observation.tolist(), float(reward), float(terminated)]


def agent(kind: str, observation: list[float]) -> list[float]:
    """The logits of the agent that visitors push."""
    recorded = json.loads((HERE / "data" / "agents.json").read_text("utf-8"))
    policy = network(*recorded["sizes"])
    nn.utils.vector_to_parameters(tensor(recorded[kind]["weights"]), policy.parameters())
    return policy(tensor(observation)).tolist()


def cases() -> dict[str, tuple[Callable[..., list[float]], Iterable[Any]]]:
    """
    :return: By name of the function in JavaScript: the function here, and arguments of its calls
    """
    random, product = np.random.default_rng(0), itertools.product

    def uniform(low: float, high: float, *size: int) -> Any:
        return random.uniform(low, high, size).round(3).tolist()

    groups = [[[uniform(-1, 1, n) for n in random.integers(1, 7, 3)] for _ in range(2)] + [[[1.0, 1.0]] * 3] for _ in range(3)]
    settings = [
        dict(kind=k, gamma=g, scale=s) for k, g, s in product(("outcome", "return_to_go"), (0.9, 1), ("group", "batch"))
    ]
    runs = [(uniform(-1, 1, 12), uniform(-2, 2, 13), [bool(end) for end in random.integers(0, 4, 12) == 0]) for _ in range(3)]
    logits = (-5, -1.5, 0.4, 3)
    rewards = [(2, 10, 3, 10, 10, 10), (1, 1, 1, 0, 0, 1), (3.8, 5.2, 6.1, 0, 0, 1)]
    return {
        "M.clip": (lambda *args: list(clipped(*args)), product(uniform(0, 2, 12), (-2.1, 0.5), (0.1, 0.2), (0.2, 0.28))),
        "M.klValues": (kl_values, [(60, 39, 1, 40, 30, 30), (5, 20, 70, 10, 30, 5)]),
        "M.klGradients": (
            kl_gradients,
            [(s, *w) for s in (0, 0.4, 1) for w in [(60, 39, 1, 40, 30, 30), (5, 20, 70, 10, 30, 5)]],
        ),
        "M.reset": (reset, product((0.02, 0.1, 0.5), (0.2, 0.5, 1.0), (0, 1, 3))),
        "M.group": (group, [(*how, *each) for how in product((2, 3, 6), (0, 1), (0, 1), (0, 1, 2)) for each in rewards]),
        "M.live": (lambda n, *r: live_groups(tensor(r).view(-1, n)).double().tolist(), product((2, 3), *[(0, 1)] * 6)),
        "M.twoStates": (two_states, product(logits, logits)),
        "M.vanillaStep": (vanilla_step, product(logits, logits, (0.1, 5))),
        "M.naturalStep": (natural_step, product(logits, logits, (0.001, 0.2))),
        "M.scaledStep": (scaled_step, product(logits, logits, (0.001, 0.2))),
        "M.clippedStep": (clipped_step, product(logits, logits, (0.1, 5), (0.1, 0.3))),
        "M.stepFacts": (step_facts, product(logits[:2], logits[:3], logits[1:], logits[:2])),
        "stepWeights": (weights_of_steps, product([(5, 5, 5), (2, 4, 10)], ("episode", "step"))),
        "groupAdvantages": (advantages_of_groups, product(groups, settings)),
        "gaeOfSteps": (gae_of_steps, [(*run, *how) for run in runs for how in product((0.9, 0.99), (0, 0.95, 1))]),
        "learn": (learn, [(learning_case(name, seed),) for name in ("PPO", "GRPO", "DAPO") for seed in range(3)]),
        "cartpole": (cartpole, [(uniform(-2.5, 2.5, 4)[:2] + uniform(-0.22, 0.22, 2), i % 2) for i in range(40)]),
        "M.pushes": (pushes, product((0.5, 1.0, 1.2, 3.0), (-2.1, 0.5), (0.2,), (0.28, 1.0), (0.05, 0.3))),
        "agent": (agent, [(kind, uniform(-1, 1, 4)) for kind in ("untrained", "trained") for _ in range(10)]),
    }


def golden() -> dict[str, list[tuple[Any, list[float]]]]:
    """
    :return: By name of the function in JavaScript: arguments and values of each call
    """
    return {
        name: [(args, [float(f"{value:.{DIGITS}g}") for value in function(*args)]) for args in calls]
        for name, (function, calls) in cases().items()
    }


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(golden(), separators=(",", ":")) + "\n", encoding="utf-8")
