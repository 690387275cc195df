"""Callbacks for text policies, which can be used in configuration files."""

from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from torch.nn.attention import SDPBackend, sdpa_kernel


class WarmStart(BaseCallback):
    """
    Pretrain a text policy on worked examples of its task (``policy.pretrain``) before the first step.
    Does nothing if training is continued or resumed. With the model's ``verbose`` from 1 on, prints what it has reached.

    :param n_examples: number of examples
    :param n_epochs: number of passes over the examples
    :param batch_size: number of examples per gradient step
    :param seed: seed for drawing the examples
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
        # If all groups were dead, there were steps but no updates
        is_new = self.model.num_timesteps == 0 and self.model._n_updates == 0
        if is_new and getattr(self.model, "resumption", None) is None:
            # Created in the environment's process, as a task may not be picklable
            examples = self.training_env.env_method("worked_examples", self.n_examples, seed=self.seed, indices=0)[0]
            reached = policy.pretrain(examples, n_epochs=self.n_epochs, batch_size=self.batch_size)
            if self.model.verbose >= 1:
                print(f"Warm start: {reached.accuracy:.1%} of {len(examples)} examples right, loss {reached.losses[-1]:.3g}")

    def _on_step(self) -> bool:
        return True


class PlainAttention(BaseCallback):
    """
    Disable PyTorch's fused attention kernels during training. They have no second derivatives, which TRPO needs.
    """

    def _on_training_start(self) -> None:
        self._plain = sdpa_kernel(SDPBackend.MATH)
        self._plain.__enter__()

    def _on_training_end(self) -> None:
        self._plain.__exit__(None, None, None)

    def _on_step(self) -> bool:
        return True
