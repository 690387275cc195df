"""
The agents that visitors of the lecture can push: ``python -m benchmarks.lecture_agents``.

Trains each with DAPO's entry in ``zoo_configs`` on a small network, and writes the weights before and after training, with
five digits, to ``sb3_grpo/classroom/lecture/data/agents.json``. The returns there are those of the rounded weights.
"""

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from torch import nn

from benchmarks.common import hyperparameters
from sb3_grpo import DAPO

TARGET = Path(__file__).parents[1] / "sb3_grpo" / "classroom" / "lecture" / "data" / "agents.json"
# Training steps, and hidden layers
TASKS = {"CartPole-v1": (30_000, [16, 16]), "Pendulum-v1": (60_000, [32, 32]), "Acrobot-v1": (300_000, [32, 32])}
SEED = 0
N_EPISODES, FIRST_EVALUATION_SEED = 100, 10_000
DIGITS = 5
# CartPole pushes in m/s, to either side, after this many steps, and how many there are per episode
PUSHES, PUSH_EVERY, N_PUSHES = (0.6, 1.2, 1.8), 100, 3


def layers_of(model: DAPO) -> list[nn.Linear]:
    """
    :param model: A model
    :return: The linear layers from the observation to the action; there is a tanh between consecutive layers
    """
    hidden = [module for module in model.policy.mlp_extractor.policy_net if isinstance(module, nn.Linear)]
    return [*hidden, model.policy.action_net]  # type: ignore[list-item]


def round_weights(model: DAPO) -> list[float]:
    """
    Round the weights of the policy.

    :param model: A model
    :return: The rounded weights: for each layer the rows of its matrix, then its biases
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
    :param model: A model with rounded weights
    :param env_id: id of its task
    :return: The weights, and the mean and standard deviation of the return of the most likely actions
    """
    weights = round_weights(model)
    env = make_vec_env(env_id, n_envs=1, seed=FIRST_EVALUATION_SEED)
    returns, _ = evaluate_policy(model, env, N_EPISODES, return_episode_rewards=True)
    env.close()
    return {"mean": round(float(np.mean(returns)), 1), "std": round(float(np.std(returns)), 1), "weights": weights}


def survival(policy: Any, push: float) -> float:
    """
    :param policy: A policy for CartPole, anything with ``predict``
    :param push: Change of the cart's speed, to either side
    :return: Share of the episodes in which the pole never falls
    """
    env: Any = gym.make("CartPole-v1").unwrapped
    generator, survived = np.random.default_rng(SEED), 0
    for seed in range(FIRST_EVALUATION_SEED, FIRST_EVALUATION_SEED + N_EPISODES):
        observation, _ = env.reset(seed=seed)
        for step in range(PUSH_EVERY * (N_PUSHES + 1)):
            if step and step % PUSH_EVERY == 0:
                env.state[1] += push * generator.choice([-1, 1])
                observation = np.array(env.state, np.float32)
            observation, _, fallen, _, _ = env.step(int(policy.predict(observation, deterministic=True)[0]))
            if fallen:
                break
        survived += not fallen
    return survived / N_EPISODES


def train(env_id: str, timesteps: int, net_arch: list[int]) -> dict[str, Any]:
    """
    :param env_id: The task
    :param timesteps: How long to train
    :param net_arch: Hidden layers
    :return: What the page shows about it
    """
    settings = hyperparameters("dapo", env_id)
    policy_kwargs = {**settings.pop("policy_kwargs", {}), "net_arch": net_arch}
    env = make_vec_env(env_id, n_envs=settings.pop("n_envs"), seed=SEED)

    def new_model() -> DAPO:
        return DAPO(env=env, policy_kwargs=policy_kwargs, seed=SEED, device="cpu", **settings)

    untrained, model = judged(new_model(), env_id), new_model().learn(timesteps)
    trained = judged(model, env_id)
    if env_id == "CartPole-v1":
        trained["survives"] = {str(push): survival(model, push) for push in PUSHES}
    sizes = [layer.in_features for layer in layers_of(new_model())] + [layers_of(new_model())[-1].out_features]
    env.close()
    return {"env": env_id, "steps": timesteps, "sizes": sizes, "untrained": untrained, "trained": trained}


def main() -> None:
    """Train, evaluate, write."""
    th.set_num_threads(1)
    agents = {}
    for env_id, (timesteps, net_arch) in TASKS.items():
        agent = agents[env_id.partition("-")[0].lower()] = train(env_id, timesteps, net_arch)
        print(f"{env_id}: {agent['untrained']['mean']} before training, {agent['trained']['mean']} after")
    TARGET.write_text(json.dumps(agents, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{TARGET}: {TARGET.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
