"""
Answers and tokens per second of training on text, on CPU, against peers: ``python -m benchmarks.text_speed``.

The task is the sum of two digits (``--digits 2``: of two numbers below 100), written by a transformer with 2 layers of
width 64. Subjects alternate, several times, each in its own process with one torch thread:

- ``ours``: DAPO with a ``VerifierTextVecEnv`` and ``TokenPolicy``, whose rollouts read each token once (key/value cache) and
  whose updates read each answer once, and equal answers to a prompt only once together
- ``ours_each``: the same, but equal answers are read as if they were different: on this small task many of the sampled
  answers are equal, while those of a large language model hardly ever are
- ``loop``: the same algorithm, but used as on any other environment: single environments in a ``DummyVecEnv``,
  and for each token, in rollout and update, the network reads the whole prefix
- ``ppo``: SB3's own PPO on such environments, also without a cache. It does less than ``loop``: no groups, no exact starts
- ``trl``, ``trl_gpt2``: trl's GRPOTrainer with a Llama, and with a GPT-2 that matches our network layer for layer
- ``bare``: a cached sampling loop in plain PyTorch on our weights, and nothing else
- ``generate``: ``TokenPolicy.generate_tokens``

The longer the answers, the more a cache gains. With ``--times 12`` each sum is repeated twelve times, which gives
answers of 20 tokens on average that are about as easy to learn; the trl peers only support short answers.

Prints medians and ratios, and writes ``benchmarks/results/text_speed.json`` (``text_speed_digits_2.json``,
``text_speed_times_12.json``). The trl peers need ``pip install trl``, and are skipped without it.
"""

import argparse
import gc
import json
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch as th
import torch.nn.functional as F
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from benchmarks import text_setting as setting
from benchmarks.timing import Stopwatch, medians, one_round, peak_memory_mib, ratio
from sb3_grpo import DAPO, make_group_env
from sb3_grpo.envs import VerifierTextEnv, VerifierTextVecEnv
from sb3_grpo.groups.group import Episode
from sb3_grpo.text.buffer import EpisodeTexts, TokenRolloutBuffer
from sb3_grpo.text.policies import TokenActorCriticPolicy, TokenPolicy
from sb3_grpo.text.tokens import PAD
from sb3_grpo.text.transformer import CausalTransformer

TRL_PACKAGES = ("trl", "transformers", "tokenizers", "datasets", "accelerate")


class UncachedTokenPolicy(TokenPolicy):
    """``TokenPolicy`` used like any SB3 policy: from observations to actions, step by step, without memory."""

    # Observations are stored and read step by step
    reads_texts = False

    def action_sampler(self) -> Callable[[Any], tuple[np.ndarray, th.Tensor]]:
        """
        :return: function from observations to actions and their log probabilities
        """

        def sample(observations: np.ndarray) -> tuple[np.ndarray, th.Tensor]:
            distribution = self.get_distribution(th.as_tensor(observations, device=self.device))
            actions = distribution.get_actions()
            return actions.cpu().numpy(), distribution.log_prob(actions)

        return sample


class UncachedActorCriticPolicy(TokenActorCriticPolicy):
    """``TokenActorCriticPolicy`` with the ``forward`` of SB3's policies."""

    def forward(self, obs: th.Tensor, deterministic: bool = False) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        """
        :param obs: Observation
        :param deterministic: Whether to sample or use deterministic actions
        :return: action, value and log probability of the action
        """
        hidden = self._hidden(obs)
        distribution = self._get_action_dist_from_latent(hidden)
        actions = distribution.get_actions(deterministic=deterministic)
        return actions, self.value_net(hidden), distribution.log_prob(actions)


class EachTextBuffer(TokenRolloutBuffer):
    """``TokenRolloutBuffer`` that does not detect equal texts."""

    def _observations(self, episodes: list[Episode], rows: np.ndarray) -> EpisodeTexts:
        merged = super()._observations(episodes, rows)
        text = th.as_tensor(merged.text)
        return replace(
            merged, texts=merged.texts[text], n_tokens=merged.n_tokens[merged.text], text=np.arange(len(merged.text))
        )


class StopAfter(BaseCallback):
    """
    Ends training after this many updates.

    :param ends: Grows by one with each update
    :param n_updates: Number of updates
    """

    def __init__(self, ends: list[dict[str, float]], n_updates: int):
        super().__init__()
        self.ends = ends
        self.n_updates = n_updates

    def _on_step(self) -> bool:
        return len(self.ends) < self.n_updates


def measure(model: BaseAlgorithm, n_updates: int) -> dict[str, float]:
    """
    Train for a while. The first update is not counted.

    :param model: A model whose policy has been warm-started
    :param n_updates: Number of updates that are counted
    :return: Rates, and peak memory in MiB
    """
    counted = dict.fromkeys(("answers_sampled", "answers_trained", "tokens_trained", "right"), 0.0)
    ends: list[dict[str, float]] = []  # of each update
    stopwatch = Stopwatch(time.perf_counter)
    step, update = model.env.step, model.train  # type: ignore[union-attr, attr-defined]

    def env_step(*args: Any) -> Any:
        result = step(*args)
        counted["answers_sampled"] += float(result[2].sum())
        counted["right"] += float((result[1] > 0.5).sum())
        return result

    def train() -> None:
        update()
        batch = getattr(model, "batch", None)
        if isinstance(model, PPO):
            counted["answers_trained"] += float(model.rollout_buffer.episode_starts.sum())
            counted["tokens_trained"] += model.rollout_buffer.actions.size
        elif batch is not None:
            counted["answers_trained"] += batch.lengths.numel()
            counted["tokens_trained"] += int(batch.lengths.sum())
        now = {"seconds": time.perf_counter(), "tokens_sampled": float(model.num_timesteps)}
        ends.append({**now, **counted, "collect": stopwatch.spent["collect_rollouts"]})

    model.env.step = env_step  # type: ignore[union-attr, method-assign]
    model.train = train  # type: ignore[attr-defined]
    stopwatch.watch(model, "collect_rollouts")
    # The first full garbage collection visits everything imported, once: it should not happen during the measurement
    gc.collect()
    model.learn(10**12, callback=StopAfter(ends, n_updates + 1))
    total = {key: ends[-1][key] - ends[0][key] for key in ends[0]}
    return {
        "answers_per_second": total["answers_trained"] / total["seconds"],
        "tokens_per_second": total["tokens_trained"] / total["seconds"],
        "rollout_tokens_per_second": total["tokens_sampled"] / total["collect"],
        "seconds_per_update": total["seconds"] / n_updates,
        "tokens_per_answer": total["tokens_sampled"] / total["answers_sampled"],
        "right": total["right"] / total["answers_sampled"],
        "peak_memory_mib": peak_memory_mib(),
    }


def _model(policy: type[TokenPolicy], env: Any) -> DAPO:
    model = DAPO(policy, env, seed=setting.SEED, device="cpu", policy_kwargs=setting.NETWORK, **setting.SETTINGS)
    model.policy.pretrain(setting.warm_start_examples(), **setting.WARM_START)  # type: ignore[operator]
    return model


def _text_vec_env() -> VerifierTextVecEnv:
    return VerifierTextVecEnv(
        setting.N_COPIES, seed=setting.SEED, task=setting.task(), max_answer_tokens=setting.MAX_ANSWER_TOKENS
    )


def _single_env(render_mode: str | None = None) -> VerifierTextEnv:
    return VerifierTextEnv(setting.task(), max_answer_tokens=setting.MAX_ANSWER_TOKENS)


def ours(n_updates: int) -> dict[str, float]:
    """
    :param n_updates: Number of updates that are counted
    :return: Result of :func:`measure` for DAPO with all of this package's features for text
    """
    return measure(_model(TokenPolicy, _text_vec_env()), n_updates)


def ours_each(n_updates: int) -> dict[str, float]:
    """
    :param n_updates: Number of updates that are counted
    :return: The same, without the advantage of equal answers
    """
    model = _model(TokenPolicy, _text_vec_env())
    model.rollout_buffer = EachTextBuffer(model.observation_space, model.action_space, model.device, model.n_envs)
    return measure(model, n_updates)


def loop(n_updates: int) -> dict[str, float]:
    """
    :param n_updates: Number of updates that are counted
    :return: Result of :func:`measure` for DAPO without anything specific to text
    """
    # Monitor and StartQueue around each copy
    return measure(
        _model(UncachedTokenPolicy, make_group_env(_single_env, n_envs=setting.N_COPIES, seed=setting.SEED)), n_updates
    )


def ppo(n_updates: int) -> dict[str, float]:
    """
    :param n_updates: Number of updates that are counted
    :return: Result of :func:`measure` for SB3's own loop
    """
    model = PPO(
        UncachedActorCriticPolicy,
        make_vec_env(_single_env, n_envs=setting.N_COPIES, seed=setting.SEED),
        # PPO's rollouts do not consist of whole answers. Each has 512 times the longest answer, in as many minibatches as ours
        n_steps=setting.MAX_ANSWER_TOKENS,
        batch_size=setting.N_COPIES * setting.MAX_ANSWER_TOKENS // setting.N_MINIBATCHES,
        n_epochs=setting.N_EPOCHS,
        learning_rate=setting.LEARNING_RATE,
        gamma=1.0,
        clip_range=setting.CLIP_RANGE,
        max_grad_norm=setting.MAX_GRAD_NORM,
        seed=setting.SEED,
        device="cpu",
        policy_kwargs=setting.NETWORK,
    )
    model.policy.pretrain(setting.warm_start_examples(), **setting.WARM_START)  # type: ignore[operator]
    return measure(model, n_updates)


def trl(n_updates: int, architecture: str = "llama") -> dict[str, float]:
    """
    :param n_updates: Number of updates that are counted
    :param architecture: "llama" or "gpt2"
    :return: Rates of trl's GRPOTrainer
    """
    # Here, so that no other process holds trl in memory
    from benchmarks.text_speed_trl import train

    return train(n_updates, architecture)


def trl_gpt2(n_updates: int) -> dict[str, float]:
    """
    :param n_updates: Number of updates that are counted
    :return: Rates of trl's GRPOTrainer
    """
    return trl(n_updates, "gpt2")


def _bare_block(block: Any, hidden: th.Tensor, keys: th.Tensor, values: th.Tensor, begin: int, end: int) -> th.Tensor:
    n, t, width = hidden.shape
    heads = block.qkv(block.attention_norm(hidden)).view(n, t, 3, block.n_heads, -1)
    new_queries, new_keys, new_values = heads.permute(2, 0, 3, 1, 4)
    keys[:, :, begin:end] = new_keys
    values[:, :, begin:end] = new_values
    # In lock-step there is nothing to mask: a new token may attend to everything
    attended = F.scaled_dot_product_attention(new_queries, keys[:, :, :end], values[:, :, :end], is_causal=t > 1)
    hidden = hidden + block.attention_out(attended.transpose(1, 2).reshape(n, t, width))
    return hidden + block.mlp(block.mlp_norm(hidden))


@th.inference_mode()
def bare_loop(network: CausalTransformer, head: th.nn.Linear, prompts: th.Tensor, n_new: int) -> th.Tensor:
    """
    The minimum for sampling with a cache: prompts of equal length, all answers in lock-step, to the maximum length.

    :param network: The transformer
    :param head: From hidden states to logits
    :param prompts: (n, P) prompts without padding
    :param n_new: Number of tokens to generate
    :return: (n, n_new) tokens
    """
    n, end = prompts.shape
    n_heads = setting.NETWORK["n_heads"]
    cache = th.empty((len(network.blocks), 2, n, n_heads, end + n_new, network.width // n_heads))
    answers = prompts.new_empty((n, n_new))
    begin, tokens = 0, prompts
    for i in range(n_new):
        hidden = network.token_embedding(tokens) + network.position_embedding.weight[begin:end]
        for block, (keys, values) in zip(network.blocks, cache, strict=True):
            hidden = _bare_block(block, hidden, keys, values, begin, end)
        probabilities = head(network.norm(hidden[:, -1])).softmax(dim=-1)
        tokens = th.multinomial(probabilities, 1)
        answers[:, i : i + 1] = tokens
        begin, end = end, end + 1
    return answers


def _generation(sample: Callable[[TokenPolicy, th.Tensor], th.Tensor], n_updates: int) -> dict[str, float]:
    model = _model(TokenPolicy, _text_vec_env())
    policy, task = model.policy, setting.task()
    assert isinstance(policy, TokenPolicy)
    policy.set_training_mode(False)
    tokenizer = policy.observation_space.tokenizer
    rng = np.random.default_rng(setting.SEED)
    longest = max(len(task.item(index).prompt) for index in range(task.n_items))
    drawn = [index for index in range(task.n_items) if len(task.item(index).prompt) == longest]  # lock-step needs one length
    seconds, n_tokens = 0.0, 0
    gc.collect()
    # An update takes longer than generating its answers
    for i in range(10 * n_updates + 1):
        items = rng.choice(drawn, size=setting.N_GROUPS).repeat(setting.GROUP_SIZE)
        prompts = th.as_tensor([tokenizer.encode(task.item(int(item)).prompt) for item in items])
        begin = time.perf_counter()
        answers = sample(policy, prompts)
        if i > 0:
            seconds += time.perf_counter() - begin
            # Up to and including the one that ends the answer: what lock-step generates after it is useless
            goes_on = ((answers != tokenizer.eos_id) & (answers != PAD)).long().cumprod(dim=1)
            n_tokens += int((goes_on.sum(dim=1) + 1).clamp(max=setting.MAX_ANSWER_TOKENS).sum())
    n_answers = 10 * n_updates * setting.N_ANSWERS
    return {
        "tokens_per_second": n_tokens / seconds,
        "answers_per_second": n_answers / seconds,
        "tokens_per_answer": n_tokens / n_answers,
        "peak_memory_mib": peak_memory_mib(),
    }


def bare(n_updates: int) -> dict[str, float]:
    """
    :param n_updates: A tenth of the number of batches of answers that are counted
    :return: Rates of :func:`bare_loop`
    """
    return _generation(
        lambda policy, prompts: bare_loop(policy.network, policy.action_net, prompts, setting.MAX_ANSWER_TOKENS),  # type: ignore[arg-type]
        n_updates,
    )


def generate(n_updates: int) -> dict[str, float]:
    """
    :param n_updates: A tenth of the number of batches of answers that are counted
    :return: Rates of ``TokenPolicy.generate_tokens``
    """
    return _generation(
        lambda policy, prompts: policy.generate_tokens(prompts, setting.MAX_ANSWER_TOKENS)[:, prompts.shape[1] :], n_updates
    )


SUBJECTS: dict[str, Callable[[int], dict[str, float]]] = {
    "ours": ours,
    "ours_each": ours_each,
    "loop": loop,
    "ppo": ppo,
    "trl": trl,
    "trl_gpt2": trl_gpt2,
    "bare": bare,
    "generate": generate,
}
# (subject, figure) against (peer, figure)
RATIOS: dict[str, tuple[str, str, str, str]] = {
    "rollout_vs_loop": ("ours", "rollout_tokens_per_second", "loop", "rollout_tokens_per_second"),
    "training_each_vs_loop": ("ours_each", "tokens_per_second", "loop", "tokens_per_second"),
    "training_vs_loop": ("ours", "tokens_per_second", "loop", "tokens_per_second"),
    "rollout_vs_ppo": ("ours", "rollout_tokens_per_second", "ppo", "rollout_tokens_per_second"),
    "training_each_vs_ppo": ("ours_each", "tokens_per_second", "ppo", "tokens_per_second"),
    "training_vs_ppo": ("ours", "tokens_per_second", "ppo", "tokens_per_second"),
    "training_each_vs_trl": ("ours_each", "answers_per_second", "trl", "answers_per_second"),
    "training_each_vs_trl_gpt2": ("ours_each", "answers_per_second", "trl_gpt2", "answers_per_second"),
    "training_vs_trl": ("ours", "answers_per_second", "trl", "answers_per_second"),
    "training_vs_trl_gpt2": ("ours", "answers_per_second", "trl_gpt2", "answers_per_second"),
    # How many times as fast the bare loop is
    "bare_vs_generate": ("bare", "tokens_per_second", "generate", "tokens_per_second"),
    "bare_vs_rollout": ("bare", "tokens_per_second", "ours", "rollout_tokens_per_second"),
}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=20, help="updates that are counted in each run")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--digits", type=int, default=1, choices=(1, 2), help="digits of the numbers that are added")
    parser.add_argument("--times", type=int, default=1, help="how often an answer says the sum: 12 for long answers")
    parser.add_argument("--one", choices=list(SUBJECTS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.digits > 1 and args.times > 1:
        parser.error("--times needs --digits 1: the warm start is made for one or the other")
    setting.set_task(args.digits, args.times)
    if args.one:
        th.set_num_threads(1)
        print(json.dumps(SUBJECTS[args.one](args.updates)))
        return

    from benchmarks.common import write_result

    missing = [package for package in TRL_PACKAGES if find_spec(package) is None]
    if missing:
        print(f"Without the peers of trl: missing {', '.join(missing)} (pip install {' '.join(missing)})")
    with_trl = not missing and args.times == 1
    subjects = [subject for subject in SUBJECTS if with_trl or not subject.startswith("trl")]
    options = ("--updates", args.updates, "--digits", args.digits, "--times", args.times)
    runs = [
        one_round(subjects, "benchmarks.text_speed", *options, TOKENIZERS_PARALLELISM="false") for _ in range(args.repeats)
    ]
    result = {
        "task": {"digits": args.digits, "times": args.times, "max_answer_tokens": setting.MAX_ANSWER_TOKENS},
        "n_envs": setting.N_COPIES,
        "updates": args.updates,
        "median": medians(runs),
        "median_of_paired_ratios": {
            name: ratio(runs, subject, key, peer, peer_key)
            for name, (subject, key, peer, peer_key) in RATIOS.items()
            if subject in subjects and peer in subjects
        },
        "runs": runs,
        "hyperparameters": {**setting.SETTINGS, **setting.NETWORK, "warm_start": setting.WARM_START, "seed": setting.SEED},
        "trl": {package: version(package) for package in TRL_PACKAGES} if with_trl else None,
    }
    suffix = "" if args.digits == 1 else f"_digits_{args.digits}"
    write_result(f"text_speed{suffix}{'' if args.times == 1 else f'_times_{args.times}'}.json", result)


if __name__ == "__main__":
    main()
