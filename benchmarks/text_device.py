"""
What training on text costs on the CPU and on a GPU, stage by stage: ``python -m benchmarks.text_device``.

``TokenPolicy`` answers sums of two nine-digit numbers. It only has to generate: its weights are random, and
no answer ends before the last token, so the amount of work is known. One process for each device and
network size. The stages:

- ``generation``: ``generate_tokens``, token by token. Reading the prompts is not counted
- ``rollout``: the answers of an update as training collects them, through ``VerifierTextVecEnv``; environment included
- ``verification``: decoding answers and comparing them with the references, always on the CPU
- ``log_probs``: one pass over prompts and answers, without gradient
- ``update``: loss, gradient and optimizer steps

Counted is the minimum that has to be done:

- FLOP of a forward pass: 2 x entries of the weight matrices x tokens (embeddings are looked up, not multiplied, and the last
  layer applies to tokens of answers only), plus 4 x width x layers for each pair of a token and one that it attends to. An
  update takes 3 times that.
- Bytes of ``generation`` and ``rollout``: at each step all weight matrices once, and the keys and values that are read, in
  float32 or, with autocast, in bfloat16 (more is actually moved then: weights are stored in float32). In the rollout, reading
  the prompts is not counted.

FLOP/s and bytes/s are compared with the fastest of a few large matrix products and copies on the same device, the product in
the same type. Weights that fit into a cache can be read faster than the copy.

Prints a table and writes ``benchmarks/results/text_device.json``.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from tqdm import tqdm

from benchmarks.common import RESULTS, command, machine
from sb3_grpo import GRPO
from sb3_grpo.envs import VerifierTextVecEnv
from sb3_grpo.envs.verifiers.runner import Check
from sb3_grpo.text.buffer import EpisodeTexts
from sb3_grpo.text.policies import TokenPolicy
from sb3_grpo.text.tokens import TokenSteps
from sb3_grpo.utils.machine import peak_memory

MODELS: dict[str, dict[str, int]] = {
    "small": {"n_layers": 2, "width": 64, "n_heads": 4},
    "medium": {"n_layers": 6, "width": 384, "n_heads": 6},
    "large": {"n_layers": 12, "width": 768, "n_heads": 12},
}
# The largest would take an hour on a CPU
CPU_MODELS = ("small", "medium")
DEVICES = ("cpu", "cuda", "cuda_bfloat16")
GROUP_SIZE = 8
N_MINIBATCHES = 4
SEED = 0
# Sizes of the probes: large enough for the device, small enough for a few seconds
MATRIX = {"cpu": 2048, "cuda": 8192}
COPY_BYTES = {"cpu": 2**28, "cuda": 2**30}
NO_GPU = "The GPU was not run: PyTorch finds no CUDA device here."


class Costs:
    """
    The minimum that a policy has to compute and to move.

    :param policy: The policy
    :param itemsize: Bytes per number in its computation
    """

    def __init__(self, policy: TokenPolicy, itemsize: int):
        network: Any = policy.network
        self.in_blocks = sum(each.numel() for each in network.blocks.parameters() if each.ndim == 2)
        self.in_head = policy.action_net.weight.numel()  # type: ignore[operator]
        self.n_hidden = network.width * len(network.blocks)
        self.itemsize = itemsize

    def flop(self, n_read: float, n_logits: float, n_pairs: float) -> float:
        """
        :param n_read: Tokens that are read
        :param n_logits: Tokens after which another one is chosen
        :param n_pairs: For each token that is read, the number of tokens it attends to, itself included; summed
        :return: FLOP of the forward pass
        """
        return 2.0 * (self.in_blocks * n_read + self.in_head * n_logits) + 4.0 * self.n_hidden * n_pairs

    def moved(self, n_steps: float, n_pairs: float) -> float:
        """
        :param n_steps: How many times all weights are read
        :param n_pairs: Number of keys that are read, and of values
        :return: Bytes moved
        """
        return self.itemsize * ((self.in_blocks + self.in_head) * n_steps + 2.0 * self.n_hidden * n_pairs)


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


def probe(device: th.device, dtype: th.dtype, repeats: int) -> dict[str, float]:
    """
    The best that the device can do.

    :param device: The device
    :param dtype: Type of the numbers
    :param repeats: Number of attempts
    :return: FLOP/s of a large matrix product, and bytes/s of a large copy
    """
    n, n_bytes = MATRIX[device.type], COPY_BYTES[device.type]
    left, right = (th.randn((n, n), device=device).to(dtype) for _ in range(2))
    product = th.empty_like(left)
    source, target = (th.ones(n_bytes // 4, device=device) for _ in range(2))
    multiply = min(seconds_of(device, lambda: th.mm(left, right, out=product)) for _ in range(repeats + 1))
    copy = min(seconds_of(device, lambda: target.copy_(source)) for _ in range(repeats + 1))
    # It is read and written
    return {"flop_per_second": 2.0 * n**3 / multiply, "bytes_per_second": 2.0 * n_bytes / copy}


class Bench:
    """
    The stages, one by one, in this process.

    :param device: One of ``DEVICES``
    :param size: One of ``MODELS``
    :param n_answers: Number of texts at a time
    :param n_new: Tokens per answer
    """

    def __init__(self, device: str, size: str, n_answers: int, n_new: int):
        self.device = th.device(device.split("_")[0])
        self.n_answers, self.n_new = n_answers, n_new
        # Prompts of equal length
        operands = np.random.default_rng(SEED).integers(10**8, 10**9, size=(n_answers, 2)).tolist()
        task = [(f"{a}+{b}=", str(a + b)) for a, b in operands]
        self.env = VerifierTextVecEnv(n_answers, seed=SEED, task=task, max_answer_tokens=n_new)
        self.model = GRPO(
            "TokenPolicy",
            self.env,
            # Costs as much as any other, and leaves the policy unchanged
            learning_rate=1e-12,
            group_size=GROUP_SIZE,
            n_groups=n_answers // GROUP_SIZE,
            batch_size=n_answers * n_new // N_MINIBATCHES,
            n_epochs=1,
            policy_kwargs={**MODELS[size], "autocast": device.endswith("bfloat16")},
            seed=SEED,
            device=self.device,
        )
        policy = self.model.policy
        assert isinstance(policy, TokenPolicy)
        self.policy = policy
        self.dtype = th.bfloat16 if policy.autocast else th.float32
        self.costs = Costs(policy, self.dtype.itemsize)
        tokenizer = policy.observation_space.tokenizer
        bias: Any = policy.action_net.bias
        with th.no_grad():
            # No answer ends. Not -inf, for which the entropy has no gradient
            bias[tokenizer.eos_id] = -1e4
        self.prompts = th.as_tensor([tokenizer.encode(prompt) for prompt, _ in task], device=self.device)
        # As learn() begins, so that one stage can run at a time
        self.callback = self.model._setup_learn(10**12)[1]
        self.callback.on_training_start({}, {})

    def work(self) -> dict[str, dict[str, float]]:
        """
        :return: For each stage tokens, and where known FLOP and bytes. What is read, and what is chosen: after the prompt,
            each new token except the last is read to choose the next one
        """
        n, p, new = self.n_answers, self.prompts.shape[1], self.n_new
        decoded, chosen, read = n * (new - 1), n * new, n * (p + new - 1)
        pairs_decoded = n * sum(range(p + 1, p + new))
        pairs = n * sum(range(1, p + new))
        forward, step = self.costs.flop(read, chosen, pairs), self.costs.flop(decoded, decoded, pairs_decoded)
        moved = self.costs.moved(new - 1, pairs_decoded)
        return {
            "generation": {"tokens": decoded, "flop": step, "bytes": moved},
            "rollout": {"tokens": chosen, "flop": step, "bytes": moved},
            "verification": {"tokens": chosen},
            "log_probs": {"tokens": chosen, "flop": forward},
            "update": {"tokens": chosen, "flop": 3.0 * forward},
        }

    def seconds(self) -> dict[str, float]:
        """
        :return: Seconds of each stage
        """
        model, env = self.model, self.env
        self.policy.set_training_mode(False)
        times = {}
        prefill = seconds_of(self.device, lambda: self.policy.generate_tokens(self.prompts, 1))
        everything = seconds_of(self.device, lambda: self.policy.generate_tokens(self.prompts, self.n_new))
        times["generation"] = everything - prefill
        times["rollout"] = seconds_of(self.device, lambda: model.collect_rollouts(env, self.callback, model.rollout_buffer, 0))
        batch = model.batch
        assert batch is not None and isinstance(batch.observations, EpisodeTexts)
        times["verification"] = self._verify(batch.observations.texts.cpu().numpy())
        times["log_probs"] = seconds_of(self.device, lambda: self._log_probs(batch.observations))
        times["update"] = seconds_of(self.device, model.train)
        return times

    def _verify(self, texts: np.ndarray) -> float:
        rules = self.env.rules
        items = [rules.encode_item(row % self.n_answers).item for row in range(len(texts))]
        begin = time.perf_counter()
        answers = [rules.tokenizer.decode(text[-self.n_new :].tolist()) for text in texts]
        rules.runner.score(
            [Check(answer, rules.scorer.payload(item), item.prompt) for answer, item in zip(answers, items, strict=True)]
        )
        return time.perf_counter() - begin

    @th.no_grad()
    def _log_probs(self, observations: Any) -> th.Tensor:
        texts = observations.texts
        first = self.prompts.shape[1] - 1
        last = th.arange(first, texts.shape[1], device=texts.device)
        text = th.arange(len(texts), device=texts.device)
        steps = TokenSteps(texts, text.repeat_interleave(len(last)), last.repeat(len(texts)))
        return self.policy.get_distribution(steps).log_prob(th.zeros_like(steps.last))


def measure(device: str, size: str, args: argparse.Namespace) -> dict[str, Any]:
    """
    :param device: One of ``DEVICES``
    :param size: One of ``MODELS``
    :param args: Arguments of the command line
    :return: The rates of the stages, and the best that the device can do
    """
    if args.threads is not None:
        th.set_num_threads(args.threads)
    bench = Bench(device, size, args.answers, args.answer_tokens)
    runs = []
    for _ in tqdm(range(args.repeats + 1), desc=f"{device} {size}", leave=False):
        runs.append(bench.seconds())
    # Before the large matrices are allocated
    on_gpu = bench.device.type == "cuda"
    memory = th.cuda.max_memory_allocated(bench.device) / 2**20 if on_gpu else peak_memory()
    best = probe(bench.device, bench.dtype, args.repeats)
    stages = {}
    for stage, work in bench.work().items():
        # The first run compiles, allocates and chooses kernels
        seconds = float(np.median([run[stage] for run in runs[1:]]))
        rates = {f"{unit}_per_second": amount / seconds for unit, amount in work.items()}
        rates.update({f"share_of_{key}": rates[key] / best[key] for key in best if key in rates})
        stages[stage] = {"seconds": seconds, **work, **rates}
    return {
        "device": device,
        "model": {"name": size, **MODELS[size], "parameters": sum(each.numel() for each in bench.policy.parameters())},
        "hardware": th.cuda.get_device_name(bench.device) if on_gpu else "cpu",
        "dtype": str(bench.dtype).removeprefix("torch."),
        "float32_matmul_precision": th.get_float32_matmul_precision(),
        "threads": th.get_num_threads(),
        "best": best,
        "stages": stages,
        "peak_memory_mib": memory,
        "runs": runs,
    }


def print_tables(results: list[dict[str, Any]]) -> None:
    """
    :param results: Return values of ``measure``
    """
    for result in results:
        model, best = result["model"], result["best"]
        print(
            f"\n{result['device']}, {model['name']} ({model['parameters']:,} parameters), {result['dtype']}: peak memory "
            f"{result['peak_memory_mib']:,.0f} MiB. {result['hardware']} at best: {best['flop_per_second'] / 1e9:,.1f} "
            f"GFLOP/s, {best['bytes_per_second'] / 1e9:,.1f} GB/s"
        )
        print(f"{'':12} {'ms':>10} {'tokens/s':>12} {'GFLOP/s':>10} {'of best':>8} {'GB/s':>8} {'of best':>8} {'x CPU':>7}")
        cpu = next((each for each in results if each["device"] == "cpu" and each["model"] == model), None)
        for stage, rates in result["stages"].items():
            line = f"{stage:12} {1e3 * rates['seconds']:10,.2f} {rates['tokens_per_second']:12,.0f}"
            for key, width in (("flop_per_second", 10), ("bytes_per_second", 8)):
                known = key in rates
                line += f" {rates[key] / 1e9:{width},.2f} {rates[f'share_of_{key}']:8.1%}" if known else " " * (width + 10)
            if cpu is not None:
                line += f" {cpu['stages'][stage]['seconds'] / rates['seconds']:7.2f}"
            print(line.rstrip())


def run_one(device: str, size: str, argv: list[str]) -> dict[str, Any] | None:
    """
    :param device: One of ``DEVICES``
    :param size: One of ``MODELS``
    :param argv: Arguments of the command line
    :return: The result of a separate process, ``None`` if it fails: the others are useful without it
    """
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks.text_device", *argv, "--one", device, size],
        stdout=subprocess.PIPE,
        text=True,
        cwd=RESULTS.parents[1],
    )
    if process.returncode != 0:
        print(f"{device} {size}: failed, see above", file=sys.stderr)
        return None
    return json.loads(process.stdout.splitlines()[-1])


def parse() -> argparse.Namespace:
    """
    :return: The parsed command line
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS), help=f"on a CPU only {CPU_MODELS}")
    parser.add_argument("--answers", type=int, default=256, help="texts at a time (default: %(default)s)")
    parser.add_argument("--answer-tokens", type=int, default=64, help="tokens of an answer (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="runs, of which the median is taken, after a first one")
    parser.add_argument("--threads", type=int, help="threads of PyTorch (default: as many as it takes)")
    parser.add_argument("--output", type=Path, default=RESULTS / "text_device.json")
    parser.add_argument("--one", nargs=2, metavar=("DEVICE", "MODEL"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.answers < GROUP_SIZE or args.answers % GROUP_SIZE != 0:
        parser.error(f"--answers must be a multiple of {GROUP_SIZE}, got {args.answers}")
    for name, least in (("answer_tokens", 2), ("repeats", 1)):
        if getattr(args, name) < least:
            parser.error(f"--{name.replace('_', '-')} must be at least {least}, got {getattr(args, name)}")
    return args


def main() -> None:
    args = parse()
    if args.one:
        device, size = args.one
        print(json.dumps(measure(device, size, args)))
        return
    has_gpu = th.cuda.is_available()
    jobs = [(device, size) for size in args.models for device in (DEVICES if has_gpu else ["cpu"])]
    jobs = [(device, size) for device, size in jobs if device != "cpu" or size in CPU_MODELS]
    if not jobs:
        sys.exit(f"There is nothing to measure: of the models, only {' and '.join(CPU_MODELS)} run on a CPU. {NO_GPU}")
    results: list[dict[str, Any]] = []
    try:
        for job in jobs:
            result = run_one(*job, sys.argv[1:])
            if result is not None:
                results.append(result)
    except KeyboardInterrupt:
        print("\nInterrupted: what follows is what there is so far.")
    print_tables(results)
    if not has_gpu:
        print(f"\n{NO_GPU}")
    summary = {
        "answers": args.answers,
        "answer_tokens": args.answer_tokens,
        "group_size": GROUP_SIZE,
        "gpu": th.cuda.get_device_name() if has_gpu else NO_GPU,
        "missing": [job for job in jobs if job not in [(each["device"], each["model"]["name"]) for each in results]],
        "results": results,
        "command": command(),
        "machine": machine(),
    }
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(summary, indent=1) + "\n")
    if len(results) < len(jobs):
        sys.exit(1)


if __name__ == "__main__":
    main()
