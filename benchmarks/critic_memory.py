"""
What a critic costs in memory: the peak memory of a process that trains with a critic and without.

``python -m benchmarks.critic_memory`` trains each subject for a few updates in its own process, with networks large enough
to show next to Python and PyTorch: ``results/critic_memory.json``.
"""

import argparse
import json
from typing import Any

import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.type_aliases import PyTorchObs

from benchmarks.common import write_result
from benchmarks.timing import medians, one_round
from sb3_grpo import GRPO
from sb3_grpo.envs import VerifierTextVecEnv
from sb3_grpo.grpo import TokenActorCriticPolicy
from sb3_grpo.utils.machine import peak_memory

N_REPEATS = 2
TEXT = {"n_layers": 8, "width": 512, "n_heads": 8}
CONTROL = {"net_arch": [2048, 2048]}
N_TEXTS, N_COPIES = 16, 8
# Small minibatches, so that the networks count and not their activations
BATCH_SIZE = 16
COMMON: dict[str, Any] = {"batch_size": BATCH_SIZE, "n_epochs": 1, "seed": 0, "device": "cpu"}


class TwoTransformersPolicy(TokenActorCriticPolicy):
    """The critic is its own transformer, as large as the policy's, as in PPO for language models."""

    def _build_critic(self) -> None:
        super()._build_critic()
        self.critic, _ = self._make_network()

    def _values(self, obs: th.Tensor) -> th.Tensor:
        policys = self.network
        try:
            self.network = self.critic
            return self.value_net(self._hidden(obs))
        finally:
            self.network = policys

    def forward(self, obs: th.Tensor, deterministic: bool = False) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        actions, _, log_prob = super().forward(obs, deterministic)
        return actions, self._values(obs), log_prob

    def evaluate_actions(self, obs: PyTorchObs, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        _, log_prob, entropy = super().evaluate_actions(obs, actions)
        return self._values(obs), log_prob, entropy  # type: ignore[arg-type]

    def predict_values(self, obs: PyTorchObs) -> th.Tensor:
        return self._values(obs)  # type: ignore[arg-type]


def _text_env() -> VerifierTextVecEnv:
    return VerifierTextVecEnv(N_TEXTS, seed=0, max_answer_tokens=4)


SUBJECTS: dict[str, Any] = {
    "text, no critic": lambda: GRPO("TokenPolicy", _text_env(), n_groups=2, policy_kwargs=TEXT, **COMMON),
    "text, value head": lambda: PPO(TokenActorCriticPolicy, _text_env(), n_steps=4, policy_kwargs=TEXT, **COMMON),
    "text, critic": lambda: PPO(TwoTransformersPolicy, _text_env(), n_steps=4, policy_kwargs=TEXT, **COMMON),
    "control, no critic": lambda: GRPO("MlpPolicy", _control_env(), n_steps=8, policy_kwargs=CONTROL, **COMMON),
    "control, critic": lambda: PPO("MlpPolicy", _control_env(), n_steps=8, policy_kwargs=CONTROL, **COMMON),
}


def _control_env() -> Any:
    return make_vec_env("CartPole-v1", n_envs=N_COPIES, seed=0)


def measure(subject: str) -> dict[str, float]:
    """
    :param subject: One of ``SUBJECTS``
    :return: Parameters in millions, peak memory in MiB, and how much of it was in use before the model
    """
    th.set_num_threads(1)
    before = peak_memory()
    model: Any = SUBJECTS[subject]()
    # Two rollouts of PPO; random answers to sums rarely produce a live group
    model.learn(128 if isinstance(model, PPO) else 512)
    assert model._n_updates > 0, "without an update there are no gradients and no moments"
    parameters = sum(each.numel() for each in model.policy.parameters())
    return {"parameters_millions": parameters / 1e6, "peak_memory_mib": peak_memory(), "before_mib": before}


def main() -> None:
    """Measure all subjects, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", choices=SUBJECTS, help=argparse.SUPPRESS)
    if (subject := parser.parse_args().one) is not None:
        print(json.dumps(measure(subject)))
        return
    found = medians([one_round(SUBJECTS, "benchmarks.critic_memory") for _ in range(N_REPEATS)])
    for figures in found.values():
        figures["training_mib"] = figures["peak_memory_mib"] - figures["before_mib"]
    write_result(
        "critic_memory.json", {"medians": {subject: {k: round(v, 1) for k, v in found[subject].items()} for subject in found}}
    )


if __name__ == "__main__":
    main()
