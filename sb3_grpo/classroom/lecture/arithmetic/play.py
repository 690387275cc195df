"""The tasks played in the page, computed by Gymnasium, and its agents, computed by the package's policies."""

import json
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th

from sb3_grpo.classroom.lecture.arithmetic.live import Chance
from sb3_grpo.classroom.lecture.golden import Grid
from sb3_grpo.common.policies import ActorPolicy

AGENTS: dict[str, Any] = json.loads((files("sb3_grpo.classroom.lecture") / "data" / "agents.json").read_text("utf-8"))
NAMES = tuple(AGENTS)


def _start(name: str, chance: Chance) -> list[float]:
    if name == "pendulum":
        return [chance.uniform(-np.pi, np.pi), chance.uniform(-1, 1)]
    start = [chance.uniform(-0.05, 0.05) if name == "cartpole" else chance.uniform(-0.1, 0.1) for _ in range(4)]
    return np.array(start, np.float32).tolist() if name == "acrobot" else start


def random_episode(name: str) -> Callable[..., list[float]]:
    """
    :param name: Name of the task
    :return: Function of a seed and a number of steps. It returns observation, reward and whether the episode ended, as given
        by Gymnasium for the last of the steps, or for the one that ended the episode
    """

    def last_step(seed: int, steps: int) -> list[float]:
        env: Any = gym.make(AGENTS[name]["env"]).unwrapped
        env.reset(seed=0)
        chance = Chance(seed)
        env.state = np.array(_start(name, chance))
        for _ in range(steps):
            action = (
                np.array([chance.uniform(-2.5, 2.5)], np.float32) if name == "pendulum" else chance.below(env.action_space.n)
            )
            observation, reward, terminated, _, _ = env.step(action)
            if terminated:
                break
        return [*observation.tolist(), float(reward), float(terminated)]

    return last_step


def load_agent(name: str, kind: str) -> ActorPolicy:
    """
    :param name: Name of the task
    :param kind: "trained" or "untrained"
    :return: The package's policy with the page's weights
    """
    agent, env = AGENTS[name], gym.make(AGENTS[name]["env"])
    policy = ActorPolicy(env.observation_space, env.action_space, lambda _: 0.0, agent["sizes"][1:-1])
    weights = th.tensor(agent[kind]["weights"])
    with th.no_grad():
        for layer in [*policy.mlp_extractor.policy_net, policy.action_net]:
            for parameter in layer.parameters():
                parameter.copy_(weights[: parameter.numel()].view_as(parameter))
                weights = weights[parameter.numel() :]
    return policy


def policies() -> Callable[..., list[float]]:
    """
    :return: Function of a task, a kind of agent and a seed. It returns the output of the network for a random observation:
        logits of the actions, or their mean, in double precision
    """
    loaded: dict[tuple[int, int], Any] = {}

    def outputs(task: int, kind: int, seed: int) -> list[float]:
        if (task, kind) not in loaded:
            loaded[task, kind] = load_agent(NAMES[task], ("untrained", "trained")[kind]).double()
        policy, chance = loaded[task, kind], Chance(seed)
        observation = chance.uniforms(AGENTS[NAMES[task]]["sizes"][0], -1, 1)
        with th.no_grad():
            return policy.action_net(policy.mlp_extractor.forward_actor(observation[None]))[0].tolist()

    return outputs


_STEPS: Sequence[int] = (1, 2, 5, 12, 30)
GRIDS: dict[str, Grid] = {
    **{name: (random_episode(name), (range(10), _STEPS)) for name in NAMES},
    "agent": (policies(), (range(len(NAMES)), (0, 1), range(20))),
}
EXAMPLES: dict[str, Any] = {"agents": AGENTS}
