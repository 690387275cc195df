"""
What training on text costs on the CPU and on a GPU, stage by stage: ``python -m benchmarks.text_device``.

``TokenPolicy`` answers sums of two nine-digit numbers. Its weights are random, and no answer ends before the last token: the
amount of work is known. One process for each device and network size. The stages:

- ``generation``: ``generate_tokens``, token by token. Reading the prompts is not counted
- ``rollout``: the answers of an update as training collects them, through ``VerifierTextVecEnv``; environment included
- ``log_probs``: one pass over prompts and answers, without gradient
- ``update``: loss, gradient and optimizer steps

Writes ``benchmarks/results/text_device.json``.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th

from benchmarks.common import write_result
from benchmarks.timing import in_process, peak_memory_mib
from sb3_grpo import GRPO
from sb3_grpo.envs import VerifierTextVecEnv
from sb3_grpo.text.policies import TokenPolicy
from sb3_grpo.text.tokens import TokenSteps

MODELS: dict[str, dict[str, int]] = {
    "small": {"n_layers": 2, "width": 64, "n_heads": 4},
    "medium": {"n_layers": 6, "width": 384, "n_heads": 6},
    "large": {"n_layers": 12, "width": 768, "n_heads": 12},
}
# The largest would take an hour on a CPU
CPU_MODELS = ("small", "medium")
DEVICES = ("cpu", "cuda", "cuda_bfloat16")
N_ANSWERS, N_NEW, GROUP_SIZE, N_MINIBATCHES, SEED = 256, 64, 8, 4, 0


def seconds_of(device: th.device, function: Callable[[], Any]) -> float:
    """
    :param device: Device of the work
    :param function: The work
    :return: Seconds until the device has finished it
    """
    if device.type == "cuda":
        th.cuda.synchronize(device)
    begin = time.perf_counter()
    function()
    if device.type == "cuda":
        th.cuda.synchronize(device)
    return time.perf_counter() - begin


def make_model(device: str, size: str) -> tuple[GRPO, th.Tensor]:
    """
    :param device: One of ``DEVICES``
    :param size: One of ``MODELS``
    :return: The model, ready to train, and the prompts
    """
    # Prompts of equal length
    operands = np.random.default_rng(SEED).integers(10**8, 10**9, size=(N_ANSWERS, 2)).tolist()
    task = [(f"{a}+{b}=", str(a + b)) for a, b in operands]
    env = VerifierTextVecEnv(N_ANSWERS, seed=SEED, task=task, max_answer_tokens=N_NEW)
    model = GRPO(
        "TokenPolicy",
        env,
        # Costs as much as any other, and leaves the policy unchanged
        learning_rate=1e-12,
        group_size=GROUP_SIZE,
        n_groups=N_ANSWERS // GROUP_SIZE,
        batch_size=N_ANSWERS * N_NEW // N_MINIBATCHES,
        n_epochs=1,
        policy_kwargs={**MODELS[size], "autocast": device.endswith("bfloat16")},
        seed=SEED,
        device=device.split("_")[0],
    )
    policy: Any = model.policy
    tokenizer = policy.observation_space.tokenizer
    with th.no_grad():
        # No answer ends. Not -inf, for which the entropy has no gradient
        policy.action_net.bias[tokenizer.eos_id] = -1e4
    return model, th.as_tensor([tokenizer.encode(prompt) for prompt, _ in task], device=model.device)


@th.no_grad()
def log_probs(policy: TokenPolicy, observations: Any, n_read: int) -> th.Tensor:
    """
    :param policy: The policy
    :param observations: Texts that it has written
    :param n_read: Tokens of their prompts
    :return: Log probabilities of tokens that follow on each token of the answers
    """
    texts = observations.texts
    last = th.arange(n_read - 1, texts.shape[1], device=texts.device)
    text = th.arange(len(texts), device=texts.device)
    steps = TokenSteps(texts, text.repeat_interleave(len(last)), last.repeat(len(texts)))
    return policy.get_distribution(steps).log_prob(th.zeros_like(steps.last))


def measure(device: str, size: str, repeats: int) -> dict[str, Any]:
    """
    :param device: One of ``DEVICES``
    :param size: One of ``MODELS``
    :param repeats: Runs, of which the median is taken, after a first one that compiles, allocates and chooses kernels
    :return: Seconds of each stage
    """
    model, prompts = make_model(device, size)
    policy: Any = model.policy
    # As learn() begins, so that one stage can run at a time
    callback = model._setup_learn(10**12)[1]
    callback.on_training_start({}, {})
    runs = []
    for _ in range(repeats + 1):
        policy.set_training_mode(False)
        prefill = seconds_of(model.device, lambda: policy.generate_tokens(prompts, 1))
        times = {"generation": seconds_of(model.device, lambda: policy.generate_tokens(prompts, N_NEW)) - prefill}
        collect = (model.env, callback, model.rollout_buffer, 0)
        times["rollout"] = seconds_of(model.device, lambda: model.collect_rollouts(*collect))  # noqa: B023
        observations = model.batch.observations
        times["log_probs"] = seconds_of(model.device, lambda: log_probs(policy, observations, prompts.shape[1]))  # noqa: B023
        times["update"] = seconds_of(model.device, model.train)
        runs.append(times)
    on_gpu = model.device.type == "cuda"
    return {
        "device": device,
        "model": {"name": size, **MODELS[size], "parameters": sum(each.numel() for each in policy.parameters())},
        "hardware": th.cuda.get_device_name() if on_gpu else "cpu",
        "threads": th.get_num_threads(),
        "stages": {stage: {"seconds": float(np.median([run[stage] for run in runs[1:]]))} for stage in runs[0]},
        "peak_memory_mib": th.cuda.max_memory_allocated() / 2**20 if on_gpu else peak_memory_mib(),
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=th.get_num_threads())
    parser.add_argument("--one", nargs=2, metavar=("DEVICE", "MODEL"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(*args.one, args.repeats)))
        return
    jobs = [(device, size) for size in MODELS for device in (DEVICES if th.cuda.is_available() else ["cpu"])]
    results = []
    for device, size in jobs:
        if device != "cpu" or size in CPU_MODELS:
            options = ("--repeats", args.repeats, "--one", device, size)
            results.append(in_process("benchmarks.text_device", *options, n_threads=args.threads))
            print(results[-1], flush=True)
    write_result("text_device.json", {"answers": N_ANSWERS, "answer_tokens": N_NEW, "results": results})


if __name__ == "__main__":
    main()
