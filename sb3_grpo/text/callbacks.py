"""Callbacks for text policies, which can be used in configuration files."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv
from torch.nn.attention import SDPBackend, sdpa_kernel

from sb3_grpo.common.callbacks import Curve
from sb3_grpo.common.sampling import unchecked_distributions
from sb3_grpo.starts.group_env import make_group_env
from sb3_grpo.starts.starts import SeedStart
from sb3_grpo.text.policies import TokenPolicyMixin
from sb3_grpo.text.tokens import TokenSpace
from sb3_grpo.utils.parameters import Whole


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


@dataclass(frozen=True)
class TextEvaluation:
    """
    How a policy answers prompts.

    :param accuracy: Share of the prompts that it answers right with its most likely tokens
    :param pass_at_k: Probability that at least one of k sampled answers is right, averaged over the prompts; ``None`` if none
        were sampled
    :param answers: For each prompt, the info of the environment at the end of the most likely answer
    """

    accuracy: float
    pass_at_k: float | None
    answers: list[dict[str, Any]]


class TextEvalCallback(Curve):
    """
    Answer held-out prompts at intervals, between two updates. Unlike SB3's ``EvalCallback``, the policy reads each token only
    once. Training is the same with and without this callback.

    Logs ``eval/accuracy`` and ``eval/pass_at_8`` (for ``k=8``), and shows some prompts with answers and rewards, in the
    console and as text in TensorBoard. ``points`` has the accuracy at each evaluation.

    :param eval_env: Environment with the held-out prompts, otherwise made like that of the training: a
        :class:`VerifierTextVecEnv`. Or, for configuration files, the arguments of :class:`VerifierTextEnv`, without the
        tokenizer, which is that of the policy
    :param eval_freq: Minimum number of steps, i.e. tokens, between two evaluations
    :param n_prompts: Number of prompts to answer; they are drawn once, the same ones in each process
    :param k: Number of sampled answers, of which one must be right, for pass@k. ``None``: only the most likely answers
    :param n_samples: Number of answers to sample for each prompt: the more, the less noise. ``None``: k
    :param n_shown: Number of prompts that are shown
    :param verbose: Verbosity level: 0 for no output, 1 for showing prompts with answers
    """

    def __init__(
        self,
        eval_env: Any,
        eval_freq: int = 10_000,
        n_prompts: int = 200,
        k: int | None = 8,
        n_samples: int | None = None,
        n_shown: int = 3,
        verbose: int = 1,
    ):
        super().__init__(verbose)
        self.eval_env = eval_env
        self.eval_freq = Whole().check("eval_freq", eval_freq)
        self.n_prompts = Whole().check("n_prompts", n_prompts)
        self.k = Whole(none="no samples").check("k", k)
        self.n_samples = Whole(k or 1, none="k").check("n_samples", n_samples) or self.k
        self.n_shown = n_shown
        self.latest: TextEvaluation | None = None

    def _on_rollout_start(self) -> None:
        # A resumed run already has the point of the step at which it was interrupted. A new one may begin at 0 again
        if not self.points or not 0 <= self.num_timesteps - self.points[-1][0] < self.eval_freq:
            self._evaluate()

    def _on_training_end(self) -> None:
        if self.latest is None or self.points[-1][0] != self.num_timesteps:
            self._evaluate()

    def _evaluate(self) -> None:
        self.latest = result = self.evaluate(self.model.policy)
        self.points.append((self.num_timesteps, result.accuracy))
        self.logger.record("eval/accuracy", result.accuracy)
        if result.pass_at_k is not None:
            self.logger.record(f"eval/pass_at_{self.k}", result.pass_at_k)
        shown = [
            f"{info['prompt']!r} {info['answer']!r} reward {info['episode']['r']:g}" for info in result.answers[: self.n_shown]
        ]
        # As code in Markdown
        as_text = "\n".join(f"    {line}" for line in shown)
        self.logger.record("eval/answers", as_text, exclude=("stdout", "log", "json", "csv"))
        self.logger.record("time/total_timesteps", self.num_timesteps, exclude="tensorboard")
        self.logger.dump(self.num_timesteps)
        if self.verbose >= 1:
            print(f"Accuracy {result.accuracy:.1%} after {self.num_timesteps} steps, for example", *shown, sep="\n")

    def _on_step(self) -> bool:
        return True

    def evaluate(self, policy: Any) -> TextEvaluation:
        """
        :param policy: A policy for texts
        :return: How it answers the prompts
        """
        if not isinstance(policy, TokenPolicyMixin):
            raise ValueError(
                f"TextEvalCallback is for policies of texts, such as TokenPolicy, and this one is {type(policy).__name__}: "
                "use EvalCallback of Stable-Baselines3."
            )
        env = self._make_env(policy)
        n_items = env.get_attr("rules", 0)[0].task.n_items or 2**31
        # Not the stream that draws worked examples
        drawn = np.random.default_rng((0, 1)).choice(n_items, size=min(self.n_prompts, n_items), replace=False)
        starts = [SeedStart(0, {"item": int(item)}) for item in drawn]
        policy.set_training_mode(False)
        answers = _play(policy, env, starts, deterministic=True)
        accuracy = float(np.mean([info["is_success"] for info in answers]))
        if self.k is None or self.n_samples is None:
            return TextEvaluation(accuracy, None, answers)
        with th.random.fork_rng(devices=[policy.device] if policy.device.type == "cuda" else []):
            th.manual_seed(0)
            sampled = _play(policy, env, [start for start in starts for _ in range(self.n_samples)], deterministic=False)
        n_right = np.reshape([info["is_success"] for info in sampled], (len(starts), self.n_samples)).sum(1)
        return TextEvaluation(accuracy, float(np.mean([pass_at_k(self.n_samples, int(c), self.k) for c in n_right])), answers)

    def _make_env(self, policy: TokenPolicyMixin) -> VecEnv:
        if isinstance(self.eval_env, dict):
            trained = policy.observation_space
            settings = {"tokenizer": trained.tokenizer, "stop": trained.stop, **self.eval_env}
            self.eval_env = make_group_env("sb3_grpo/VerifierText-v0", n_envs=16, env_kwargs=settings)
        space = getattr(self.eval_env, "observation_space", None)
        if not isinstance(self.eval_env, VecEnv) or not isinstance(space, TokenSpace):
            raise ValueError(
                "TextEvalCallback needs eval_env=VerifierTextVecEnv(...), or the arguments of VerifierTextEnv as a dict, got "
                f"{type(self.eval_env).__name__}."
            )
        self.eval_env = self.eval_env.unwrapped
        trained = policy.observation_space
        if TokenSpace(1, space.tokenizer, space.stop) != TokenSpace(1, trained.tokenizer, trained.stop):
            raise ValueError(
                f"eval_env has another tokenizer or other stops than the training ({space} and {trained}): give it the same "
                "tokenizer=... and stop=..."
            )
        if space.length > policy.network_kwargs["context"]:
            raise ValueError(
                f"Texts of the evaluation have up to {space.length} tokens, and the policy reads "
                f"{policy.network_kwargs['context']}: give eval_env max_prompt_tokens and max_answer_tokens of the training."
            )
        return self.eval_env


def pass_at_k(n_samples: int, n_right: int, k: int) -> float:
    """
    Unbiased estimate of the probability that at least one of k answers is right (Chen et al. 2021, arXiv:2107.03374).

    :param n_samples: Number of sampled answers, at least k
    :param n_right: How many of them are right
    :param k: Number of answers
    :return: Share of the subsets of k answers with a right one
    """
    return 1.0 - math.comb(n_samples - n_right, k) / math.comb(n_samples, k)


@th.inference_mode()
@unchecked_distributions()
def _play(policy: TokenPolicyMixin, env: VecEnv, starts: Sequence[SeedStart], deterministic: bool) -> list[dict[str, Any]]:
    """
    :param policy: The policy
    :param env: The environment
    :param starts: Where the episodes begin
    :param deterministic: Whether to choose the most likely tokens
    :return: The info at the end of each episode
    """
    env.env_method("clear_starts")
    for number, start in enumerate(starts):
        env.env_method("queue_start", number, start, indices=number % env.num_envs)
    ended: dict[int, dict[str, Any]] = {}
    observations: Any = env.reset()
    choose, _ = policy._token_sampler(deterministic)
    while len(ended) < len(starts):
        # When there are no more, copies begin ordinary episodes, which do not count
        playing = [info.get("group_start") for info in env.reset_infos]
        observations, _, dones, infos = env.step(choose(observations)[0].cpu().numpy())
        for idx in np.flatnonzero(dones):
            if (episode := playing[idx]) is not None:
                ended[episode] = infos[idx]
    return [ended[number] for number in range(len(starts))]


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
