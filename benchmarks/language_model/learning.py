"""
A pretrained language model learns tasks from their verifiers: ``python -m benchmarks.language_model.learning``.

SmolLM2-135M-Instruct with LoRA, on the tasks of ``tasks.py``: GRPO (paper), DAPO, Dr. GRPO, and TRL's ``GRPOTrainer``
(``--variant trl``, needs ``pip install trl``). Each run has a process of its own with one torch thread, and appends a row to
``benchmarks/results/language_model/learning.jsonl``; what has a row is not run again. Seconds are CPU seconds without those
of evaluations. Tasks with several turns: ``--task guess_number calculator --variant dapo``.
"""

import argparse
import itertools
import json
import tempfile
import time
from typing import Any

import numpy as np
import torch as th

from benchmarks import common
from benchmarks.language_model.speed import TRL
from benchmarks.language_model.tasks import ONE_TURN, TASKS, Problem
from benchmarks.runs import run_missing
from benchmarks.timing import in_process, peak_memory_mib
from sb3_grpo import presets
from sb3_grpo.cli.text import LORA, PRETRAINED
from sb3_grpo.text.callbacks import TextEvalCallback, TextEvaluation
from sb3_grpo.text.pretrained import SMOLLM2, end_texts, find_model, load_tokenizer

OUTPUT = common.RESULTS / "language_model" / "learning.jsonl"
N_POINTS = 5
N_TEST, K = 200, 8
# Optimizer steps of TRL for each rollout, about as many as DAPO's, and the time after which it ends
TRL_STEPS, TRL_SECONDS = 4, 900
N_SHOWN = 12
_GROUPS = {key: PRETRAINED[key] for key in ("group_size", "n_groups")}
# Presets of language models' papers say how many optimizer steps there are (one), DAPO takes those of sb3-grpo text
VARIANTS: dict[str, dict[str, Any]] = {
    "grpo": {**presets.GRPO_PAPER, **_GROUPS},
    "dapo": {**PRETRAINED},
    # As TRL: no group is dropped, and advantages are divided by the deviation of their group
    "dapo_all_groups": {**PRETRAINED, "dynamic_sampling": False, "advantage_scale": "group"},
    "dppo": {**PRETRAINED, "policy_loss": "dppo", "clip_range_high": None},
    "maxrl": {**PRETRAINED, "advantage": "maxrl"},
    "dr_grpo": {**presets.DR_GRPO, **_GROUPS, "batch_size": None},
}


class ClockedEvaluation(TextEvalCallback):
    """
    Evaluates, and records tokens, completions and seconds of training at each point. Answers are sampled, for pass@k, only
    before and after training, as this takes as long as all other points together.

    :param eval_env: Held-out prompts
    :param eval_freq: Minimum number of tokens between two evaluations
    """

    def __init__(self, eval_env: Any, eval_freq: int):
        super().__init__(eval_env, eval_freq, N_TEST, k=K, verbose=0)
        self.curve: list[list[float]] = []
        self.ends: list[TextEvaluation] = []
        self.n_completions = 0
        self.begin = time.process_time()

    def _on_step(self) -> bool:
        self.n_completions += int(np.sum(self.locals["dones"]))
        return True

    def _evaluate(self) -> None:
        now = time.process_time()
        super()._evaluate()
        self.curve.append([self.num_timesteps, self.n_completions, now - self.begin, self.points[-1][1]])
        if self.k is not None and self.latest is not None:
            self.ends.append(self.latest)
        self.k = None
        print(self.curve[-1], flush=True)
        self.begin += time.process_time() - now

    def _on_training_end(self) -> None:
        self.k = K
        self._evaluate()


def ours(problem: Problem, variant: str, seed: int) -> dict[str, Any]:
    """
    :param problem: What is learned
    :param variant: One of ``VARIANTS``
    :param seed: Random seed
    :return: The curve, and answers before and after
    """
    from sb3_grpo import DAPO
    from sb3_grpo.envs import VerifierTextVecEnv

    tokenizer = load_tokenizer(SMOLLM2)
    prompts: dict[str, Any] = {
        "tokenizer": tokenizer,
        "stop": ["\n", *end_texts(SMOLLM2, tokenizer)],
        "examples": problem.examples,
        "max_answer_tokens": problem.max_answer_tokens,
    }
    n_envs = PRETRAINED["group_size"] * PRETRAINED["n_groups"]
    env = VerifierTextVecEnv(n_envs, seed=seed, task=problem.train, **prompts)
    test_env = VerifierTextVecEnv(n_envs, task=problem.test, **{**prompts, "max_prompt_tokens": env.rules.max_prompt_tokens})
    settings = VARIANTS[variant]
    if variant == "dr_grpo":
        settings = {**settings, "loss_average": float(env.rules.max_answer_tokens)}
    language_model = {"model": SMOLLM2, "lora": LORA}
    model = DAPO(
        "CausalLMPolicy", env, learning_rate=problem.learning_rate, policy_kwargs=language_model, seed=seed, **settings
    )
    curve = ClockedEvaluation(test_env, problem.tokens // N_POINTS)
    model.learn(problem.tokens, callback=curve)
    before, after = curve.ends
    shown = zip(before.answers[:N_SHOWN], after.answers[:N_SHOWN], strict=True)
    return {
        "curve": curve.curve,
        "pass_at_8": [before.pass_at_k, after.pass_at_k],
        "answers": [[old["prompt"], said(old), said(new), new["is_success"]] for old, new in shown],
        "updates": model._n_updates,
        "peak_memory_mib": peak_memory_mib(),
    }


def said(info: dict[str, Any]) -> str:
    """
    :param info: Info at the end of an episode
    :return: Answers and replies
    """
    return "\n".join(text.strip() for text in info.get("messages", [info["answer"]]))


def trl(problem: Problem, seed: int) -> dict[str, Any]:
    """
    With as many prompts, answers and optimizer steps per update, the same clipping, learning rate and adapters.

    :param problem: What is learned
    :param seed: Random seed
    :return: The curve
    """
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = AutoTokenizer.from_pretrained(find_model(SMOLLM2), padding_side="left")
    language_model: Any = AutoModelForCausalLM.from_pretrained(find_model(SMOLLM2))
    ends = [tokenizer.encode("\n")[0], language_model.generation_config.eos_token_id]
    # An answer ends with a line, which TRL says with the tokenizer's token
    tokenizer.pad_token, tokenizer.eos_token = tokenizer.eos_token, tokenizer.convert_ids_to_tokens(ends[0])
    language_model.generation_config.eos_token_id = ends
    few_shot = "".join(f"{prompt}{answer}\n" for prompt, answer in problem.examples)

    def dataset(task: Any, indices: Any) -> list[Any]:
        return [task.item(int(index)) for index in indices]

    rng = np.random.default_rng(seed)
    training = dataset(problem.train, rng.permutation(min(problem.train.n_items or 4096, 4096)))
    # The same prompts as those of TextEvalCallback
    test = dataset(problem.test, np.random.default_rng((0, 1)).choice(problem.test.n_items or 2**31, N_TEST, replace=False))

    curve: list[list[float]] = []
    n_tokens, n_completions, begin = 0, 0, time.process_time()

    def reward(completions: list[str], completion_ids: list[list[int]], index: list[int], **_: Any) -> list[float]:
        nonlocal n_tokens, n_completions
        n_tokens += sum(map(len, completion_ids))
        n_completions += len(completions)
        scores = [problem.train.score(text.split("\n")[0], training[i]) for text, i in zip(completions, index, strict=True)]
        return [float(score >= 1.0) for score in scores]

    def evaluate() -> None:
        nonlocal begin
        now = time.process_time()
        n_right = 0
        with th.no_grad():
            for first in range(0, N_TEST, 50):
                items = test[first : first + 50]
                inputs = tokenizer([few_shot + item.prompt for item in items], return_tensors="pt", padding=True)
                settings = {"do_sample": False, "pad_token_id": tokenizer.pad_token_id, "eos_token_id": ends}
                tokens = language_model.generate(**inputs, max_new_tokens=problem.max_answer_tokens, **settings)
                texts = tokenizer.batch_decode(tokens[:, inputs["input_ids"].shape[1] :])
                answers = [text.split("\n")[0] for text in texts]
                n_right += sum(problem.test.score(text, item) >= 1.0 for text, item in zip(answers, items, strict=True))
        curve.append([n_tokens, n_completions, now - begin, n_right / N_TEST])
        print(curve[-1], flush=True)
        begin += time.process_time() - now

    class Evaluation(TrainerCallback):
        """Evaluates as often as ours."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            # After all steps that learn from a rollout
            if state.global_step % TRL_STEPS != 0:
                return
            control.should_training_stop = n_tokens >= problem.tokens or time.process_time() - begin > TRL_SECONDS
            if n_tokens >= len(curve) * problem.tokens // N_POINTS or control.should_training_stop:
                evaluate()

    rows = [{"prompt": few_shot + item.prompt, "index": index} for index, item in enumerate(training)]
    group_size, n_groups = PRETRAINED["group_size"], PRETRAINED["n_groups"]
    with tempfile.TemporaryDirectory() as folder:
        trainer: Any = GRPOTrainer(
            model=language_model,
            reward_funcs=reward,
            args=GRPOConfig(
                output_dir=folder,
                max_steps=100_000,
                num_generations=group_size,
                per_device_train_batch_size=group_size,
                steps_per_generation=n_groups,
                gradient_accumulation_steps=n_groups // TRL_STEPS,
                max_completion_length=problem.max_answer_tokens,
                learning_rate=problem.learning_rate,
                lr_scheduler_type="constant",
                max_grad_norm=0.5,
                epsilon=0.2,
                epsilon_high=0.28,
                seed=seed,
                **TRL,
            ),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            peft_config=LoraConfig(task_type="CAUSAL_LM", **LORA),
            callbacks=[Evaluation()],
        )
        begin = time.process_time()
        evaluate()
        trainer.train()
    return {"curve": curve, "peak_memory_mib": peak_memory_mib()}


def one(task: str, variant: str, seed: int) -> dict[str, Any]:
    """
    :param task: One of ``TASKS``
    :param variant: One of ``VARIANTS``, or "trl"
    :param seed: Random seed
    :return: Its curve
    """
    problem = TASKS[task](seed)
    return trl(problem, seed) if variant == "trl" else ours(problem, variant, seed)


def main() -> None:
    """Run what has no row yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="+", default=list(ONE_TURN), choices=list(TASKS))
    parser.add_argument("--variant", nargs="+", default=list(VARIANTS), choices=[*VARIANTS, "trl"])
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0 to SEEDS-1 (settings were chosen on seeds from 100 on)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--one", nargs=3, metavar=("TASK", "VARIANT", "SEED"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        # datasets pickles what is in __main__ by value, with all that it refers to
        from benchmarks.language_model import learning

        th.set_num_threads(1)
        print(json.dumps(learning.one(args.one[0], args.one[1], int(args.one[2]))))
        return

    jobs = [
        {"task": task, "variant": variant, "seed": seed}
        for seed, task, variant in itertools.product(range(args.seeds), args.task, args.variant)
    ]
    module = "benchmarks.language_model.learning"
    run_missing(OUTPUT, jobs, lambda job: in_process(module, "--one", *job.values()), args.jobs)


if __name__ == "__main__":
    main()
