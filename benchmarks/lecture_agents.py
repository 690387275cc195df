"""
The agent that visitors of the lecture can push: ``python -m benchmarks.lecture_agents``.

Trains DAPO's entry for CartPole in ``zoo_configs`` on a small network, and writes the weights before and after training, with
five digits, to ``sb3_grpo/classroom/lecture/data/agents.json``. The returns there are those of the rounded weights.
"""

from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from torch import nn

from benchmarks.common import hyperparameters
from benchmarks.lecture_data import short, write
from sb3_grpo import DAPO

ENV, TIMESTEPS, NET_ARCH, SEED = "CartPole-v1", 30_000, [16, 16], 0
N_EPISODES, FIRST_EVALUATION_SEED = 100, 10_000
# Pushes in m/s, to either side, after this many steps, and how many there are per episode
PUSHES, PUSH_EVERY, N_PUSHES = (0.6, 1.2, 1.8), 100, 3


def judged(model: DAPO) -> dict[str, Any]:
    """
    Round the weights of a model, and evaluate it.

    :param model: A model
    :return: The weights, and the mean return of the most likely actions
    """
    policy: Any = model.policy
    network = nn.ModuleList([policy.mlp_extractor.policy_net, policy.action_net])
    weights = short(nn.utils.parameters_to_vector(network.parameters()).tolist(), digits=5)
    with th.no_grad():
        nn.utils.vector_to_parameters(th.tensor(weights), network.parameters())
    env = make_vec_env(ENV, n_envs=1, seed=FIRST_EVALUATION_SEED)
    mean, _ = evaluate_policy(model, env, N_EPISODES)
    env.close()
    return {"mean": round(float(np.mean(mean)), 1), "weights": weights}


def survival(model: DAPO, push: float) -> float:
    """
    :param model: A model
    :param push: Change of the cart's speed, to either side
    :return: Share of the episodes in which the pole never falls
    """
    env: Any = gym.make(ENV).unwrapped
    generator, survived = np.random.default_rng(SEED), 0
    for seed in range(FIRST_EVALUATION_SEED, FIRST_EVALUATION_SEED + N_EPISODES):
        observation, _ = env.reset(seed=seed)
        for step in range(PUSH_EVERY * (N_PUSHES + 1)):
            if step and step % PUSH_EVERY == 0:
                env.state[1] += push * generator.choice([-1, 1])
                observation = np.array(env.state, np.float32)
            observation, _, fallen, _, _ = env.step(int(model.predict(observation, deterministic=True)[0]))
            if fallen:
                break
        survived += not fallen
    return survived / N_EPISODES


def results() -> dict[str, Any]:
    """
    :return: The agents before and after training
    """
    settings = hyperparameters("dapo", ENV)
    policy_kwargs = {**settings.pop("policy_kwargs", {}), "net_arch": NET_ARCH}
    env = make_vec_env(ENV, n_envs=settings.pop("n_envs"), seed=SEED)
    settings |= {"env": env, "policy_kwargs": policy_kwargs, "seed": SEED, "device": "cpu"}
    untrained, model = judged(DAPO(**settings)), DAPO(**settings).learn(TIMESTEPS)
    trained = judged(model) | {"survives": {str(push): survival(model, push) for push in PUSHES}}
    return {"steps": TIMESTEPS, "sizes": [4, *NET_ARCH, 2], "untrained": untrained, "trained": trained}


if __name__ == "__main__":
    write("agents", results())
