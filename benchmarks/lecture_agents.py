"""
The agents that visitors of the lecture can push. ``python -m benchmarks.lecture_agents``.

Trains each with the entry of DAPO in ``zoo_configs``, on a small network, and writes the weights, with five digits, before and
after training to ``sb3_grpo/lecture/data/agents.json``. The returns there are those of the rounded weights.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from torch import nn

from benchmarks.common import hyperparameters
from sb3_grpo import DAPO

TARGET = Path(__file__).parents[1] / "sb3_grpo" / "lecture" / "data" / "agents.json"
# Steps of training, and hidden layers
TASKS = {"CartPole-v1": (30_000, [16, 16]), "Pendulum-v1": (60_000, [32, 32]), "Acrobot-v1": (300_000, [32, 32])}
SEED = 0
N_EPISODES, FIRST_EVALUATION_SEED = 100, 10_000
DIGITS = 5


def layers_of(model: DAPO) -> list[nn.Linear]:
    """
    :param model: A model
    :return: The linear layers from the observation to the action, with a tanh between each and the next
    """
    hidden = [module for module in model.policy.mlp_extractor.policy_net if isinstance(module, nn.Linear)]
    return [*hidden, model.policy.action_net]  # type: ignore[list-item]


def round_weights(model: DAPO) -> list[float]:
    """
    Round the weights of the policy.

    :param model: A model
    :return: The rounded weights: of each layer the rows of its matrix, then its biases
    """
    weights = [parameter for layer in layers_of(model) for parameter in layer.parameters()]
    rounded = []
    with th.no_grad():
        for each in weights:
            values = [float(f"{value:.{DIGITS}g}") for value in each.flatten().tolist()]
            each.copy_(th.tensor(values).view_as(each))
            rounded += values
    return rounded


def judged(model: DAPO, env_id: str) -> dict[str, Any]:
    """
    :param model: A model, whose weights are rounded
    :param env_id: Of its task
    :return: The weights, and the mean and the standard deviation of the return of the likeliest actions
    """
    weights = round_weights(model)
    env = make_vec_env(env_id, n_envs=1, seed=FIRST_EVALUATION_SEED)
    returns, _ = evaluate_policy(model, env, N_EPISODES, return_episode_rewards=True)
    env.close()
    return {"mean": round(float(np.mean(returns)), 1), "std": round(float(np.std(returns)), 1), "weights": weights}


def train(env_id: str, timesteps: int, net_arch: list[int]) -> dict[str, Any]:
    """
    :param env_id: The task
    :param timesteps: How long to train
    :param net_arch: Hidden layers
    :return: What the page shows of it
    """
    settings = hyperparameters("dapo", env_id)
    policy_kwargs = {**settings.pop("policy_kwargs", {}), "net_arch": net_arch}
    env = make_vec_env(env_id, n_envs=settings.pop("n_envs"), seed=SEED)

    def new_model() -> DAPO:
        return DAPO(env=env, policy_kwargs=policy_kwargs, seed=SEED, device="cpu", **settings)

    untrained = judged(new_model(), env_id)
    trained = judged(new_model().learn(timesteps), env_id)
    sizes = [layer.in_features for layer in layers_of(new_model())] + [layers_of(new_model())[-1].out_features]
    env.close()
    return {"env": env_id, "steps": timesteps, "sizes": sizes, "untrained": untrained, "trained": trained}


def main() -> None:
    """Train, judge, write."""
    th.set_num_threads(1)
    agents = {}
    for env_id, (timesteps, net_arch) in TASKS.items():
        agent = agents[env_id.partition("-")[0].lower()] = train(env_id, timesteps, net_arch)
        print(f"{env_id}: {agent['untrained']['mean']} before training, {agent['trained']['mean']} after")
    TARGET.write_text(json.dumps(agents, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{TARGET}: {TARGET.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
