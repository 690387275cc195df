"""Callbacks for policies of texts, which configuration files can name."""

from typing import Any

import torch as th
from stable_baselines3.common.callbacks import BaseCallback


class WarmStart(BaseCallback):
    """
    Before the first step, let a policy for texts learn from worked examples of its task (``policy.pretrain``).
    A model whose training is continued or resumed is left alone.

    :param n_examples: how many examples
    :param n_epochs: how many times each of them is seen
    :param batch_size: how many there are in a gradient step
    :param seed: which ones
    """

    def __init__(self, n_examples: int, n_epochs: int, batch_size: int = 64, seed: int = 0):
        super().__init__()
        self.n_examples = n_examples
        self.n_epochs = n_epochs
        self.batch_size = batch_size
        self.seed = seed

    def _on_training_start(self) -> None:
        policy: Any = self.model.policy
        if not hasattr(policy, "pretrain"):
            raise ValueError(
                f"WarmStart is for policies of texts, such as TokenPolicy, and that of this model is {type(policy).__name__}: "
                "leave the callback out."
            )
        # Where all groups were dead, there are steps and no updates
        is_new = self.model.num_timesteps == 0 and self.model._n_updates == 0
        if is_new and getattr(self.model, "resumption", None) is None:
            # Made where the environment is: a task need not be able to leave its process
            examples = self.training_env.env_method("worked_examples", self.n_examples, seed=self.seed, indices=0)[0]
            policy.pretrain(examples, n_epochs=self.n_epochs, batch_size=self.batch_size)

    def _on_step(self) -> bool:
        return True


class PlainAttention(BaseCallback):
    """
    While a policy with attention is trained, compute it without PyTorch's fused kernels,
    which have no second derivatives. TRPO needs those.
    """

    def _on_training_start(self) -> None:
        self._fused = th.backends.cuda.flash_sdp_enabled(), th.backends.cuda.mem_efficient_sdp_enabled()
        self._enable(False, False)

    def _on_training_end(self) -> None:
        self._enable(*self._fused)

    def _on_step(self) -> bool:
        return True

    @staticmethod
    def _enable(flash: bool, mem_efficient: bool) -> None:
        # Not for CUDA only, whatever the name says
        th.backends.cuda.enable_flash_sdp(flash)
        th.backends.cuda.enable_mem_efficient_sdp(mem_efficient)
