"""
A pretrained language model: tokens per second and memory, next to TRL: ``python -m benchmarks.language_model.speed``.

Subjects take turns, each in a process with one torch thread: DAPO with ``CausalLMPolicy``, TRL's ``GRPOTrainer``, and the bare
model: one forward and backward pass over each distinct token of the update, without a loss, which is the limit of any trainer
with these layers. All have the same SmolLM2 with the same LoRA, the same prompts, group and lengths, one epoch, one optimizer
step per update, or four with minibatches of one group (also with mixed ones). TRL needs ``pip install trl``. Appends to
``benchmarks/results/language_model/speed.jsonl``.
"""

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch as th

from benchmarks import common
from benchmarks.timing import Stopwatch, in_process, peak_memory_mib
from sb3_grpo.text.pretrained import SMOLLM2, find_model

OUTPUT = common.RESULTS / "language_model" / "speed.jsonl"
LORA = {"r": 16, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj"]}
SUBJECTS = ("ours", "mixed", "trl", "bare")
N_REPEATS = 3
# Arguments of TRL: the loss and the sampling of DAPO, on a CPU, and nothing written
TRL: dict[str, Any] = {
    "beta": 0.0,
    "loss_type": "dapo",
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "dataloader_pin_memory": False,
    "logging_strategy": "no",
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
}


class Shape(NamedTuple):
    """
    :param prompt: Tokens of a prompt
    :param answer: Tokens of an answer
    :param group: Answers to a prompt
    :param n_groups: Prompts of an update
    :param n_minibatches: Optimizer steps of an update
    """

    prompt: int
    answer: int
    group: int
    n_groups: int
    n_minibatches: int = 1


SHAPES = [
    Shape(60, 6, 16, 2),
    Shape(60, 64, 16, 1),
    Shape(250, 6, 16, 1),
    Shape(250, 64, 16, 1),
    Shape(250, 16, 16, 4, 4),
    Shape(1000, 256, 16, 1),
]
# Too long for three repeats; TRL needs smaller minibatches there
LONG = SHAPES[-1]


def prompts(tokenizer: Any, shape: Shape, n: int) -> list[str]:
    """
    :param tokenizer: A tokenizer of transformers
    :param shape: Lengths
    :param n: Number of prompts
    :return: Texts of random common words, each with as many tokens as a prompt should have
    """
    rng = np.random.default_rng(0)
    words = [word for token in range(1000, 6000) if (word := tokenizer.decode([token])).strip().isalpha() and word[0] == " "]
    texts: list[str] = []
    while len(texts) < n:
        text = "".join(rng.choice(words, shape.prompt))
        if len(tokenizer.encode(text)) == shape.prompt:
            texts.append(text)
    return texts


def of_updates(ends: list[float], rollout: list[float], tokens: list[float]) -> dict[str, float]:
    """
    :param ends: Time at the end of each update; the first one is not counted
    :param rollout: Time spent in generation until then
    :param tokens: Tokens generated until then
    :return: Rates, and peak memory in MiB
    """
    seconds, generating, n_tokens = (each[-1] - each[0] for each in (ends, rollout, tokens))
    return {
        "tokens_per_second": n_tokens / seconds,
        "generated_per_second": n_tokens / generating,
        "trained_per_second": n_tokens / (seconds - generating),
        "n_tokens": n_tokens,
        "peak_memory_mib": peak_memory_mib(),
    }


def ours(shape: Shape, n_updates: int) -> dict[str, float]:
    """
    :param shape: Lengths
    :param n_updates: Number of updates that are counted
    :return: See :func:`of_updates`
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(find_model(SMOLLM2))
    policy_kwargs = {"model": find_model(SMOLLM2), "lora": LORA}
    return train(shape, n_updates, tokenizer, prompts(tokenizer, shape, 64), policy_kwargs)


def mixed(shape: Shape, n_updates: int) -> dict[str, float]:
    """
    :param shape: Lengths
    :param n_updates: Number of updates that are counted
    :return: See :func:`of_updates`. Minibatches have answers to all prompts
    """
    from sb3_grpo.text import buffer

    buffer.LONG_PROMPT = math.inf  # type: ignore[assignment]
    return ours(shape, n_updates)


def train(
    shape: Shape,
    n_updates: int,
    tokenizer: Any,
    texts: list[str],
    policy_kwargs: dict[str, Any],
    device: str = "cpu",
    clock: Callable[[], float] = time.process_time,
) -> dict[str, float]:
    """
    :param shape: Lengths
    :param n_updates: Number of updates that are counted
    :param tokenizer: The model's tokenizer
    :param texts: Prompts
    :param policy_kwargs: Arguments of ``CausalLMPolicy``
    :param device: PyTorch device
    :param clock: Measures time
    :return: See :func:`of_updates`
    """
    from sb3_grpo import DAPO
    from sb3_grpo.envs import VerifierTextVecEnv

    env = VerifierTextVecEnv(
        shape.group * shape.n_groups,
        seed=0,
        task=[(text, str(index)) for index, text in enumerate(texts)],
        tokenizer=tokenizer,
        verifier=lambda answer, reference: float(len(answer) % 2),
        max_prompt_tokens=shape.prompt,
        max_answer_tokens=shape.answer,
    )
    model: Any = DAPO(
        "CausalLMPolicy",
        env,
        learning_rate=1e-5,
        group_size=shape.group,
        n_groups=shape.n_groups,
        batch_size=shape.group * shape.n_groups * shape.answer // shape.n_minibatches,
        n_epochs=1,
        gamma=1.0,
        advantage="outcome",
        dynamic_sampling=False,
        overlong_filter=False,
        policy_kwargs=policy_kwargs,
        device=device,
        seed=0,
    )
    stopwatch = Stopwatch(clock)
    stopwatch.watch(model, "collect_rollouts")
    ends, rollout, tokens = [], [], []
    update = model.train

    def timed() -> None:
        update()
        ends.append(clock())
        rollout.append(stopwatch.spent["collect_rollouts"])
        tokens.append(float(model.num_timesteps))

    model.train = timed
    while len(ends) <= n_updates:
        model.learn(1, reset_num_timesteps=not ends)
    return of_updates(ends, rollout, tokens)


def trl(shape: Shape, n_updates: int) -> dict[str, float]:
    """
    :param shape: Lengths
    :param n_updates: Number of updates that are counted
    :return: See :func:`of_updates`
    """
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    n_answers = shape.group * shape.n_groups
    n_at_a_time = shape.group // 4 if shape == LONG else shape.group
    stopwatch = Stopwatch()
    ends, rollout, tokens = [], [], [0.0]

    def reward(completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        tokens.append(tokens[-1] + sum(map(len, completion_ids)))
        return [float(len(completion) % 2) for completion in completions]

    class Clock(TrainerCallback):
        """Records the time after each update."""

        def on_step_end(self, args: Any, state: Any, *others: Any, **kwargs: Any) -> None:
            if state.global_step % shape.n_minibatches == 0:
                ends.append(time.process_time())
                rollout.append(stopwatch.spent["_generate_and_score_completions"])

    tokenizer = AutoTokenizer.from_pretrained(find_model(SMOLLM2))
    with tempfile.TemporaryDirectory() as folder:
        trainer: Any = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(find_model(SMOLLM2)),
            reward_funcs=reward,
            args=GRPOConfig(
                output_dir=folder,
                max_steps=(n_updates + 1) * shape.n_minibatches,
                num_generations=shape.group,
                generation_batch_size=n_answers,
                per_device_train_batch_size=n_at_a_time,
                gradient_accumulation_steps=n_answers // n_at_a_time // shape.n_minibatches,
                max_completion_length=shape.answer,
                learning_rate=1e-5,
                seed=0,
                **TRL,
            ),
            train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts(tokenizer, shape, 64)]),
            processing_class=tokenizer,
            peft_config=LoraConfig(task_type="CAUSAL_LM", **LORA),
            callbacks=[Clock()],
        )
        stopwatch.watch(trainer, "_generate_and_score_completions")
        trainer.train()
    return of_updates(ends, rollout, tokens[1:])


def bare(shape: Shape, n_updates: int) -> dict[str, float]:
    """
    :param shape: Lengths
    :param n_updates: Number of passes that are counted
    :return: Rate of training
    """
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = get_peft_model(AutoModelForCausalLM.from_pretrained(find_model(SMOLLM2)), LoraConfig(**LORA))
    n_distinct = shape.n_groups * (shape.prompt + shape.group * shape.answer)
    rows = max(1, n_distinct // 1024)
    tokens = th.randint(10, 40_000, (rows, n_distinct // rows))
    seconds = []
    for _ in range(n_updates + 1):
        begin = time.process_time()
        hidden = model.get_base_model().base_model(input_ids=tokens, use_cache=False).last_hidden_state
        hidden.sum().backward()
        seconds.append(time.process_time() - begin)
    n_answers = shape.n_groups * shape.group * shape.answer
    return {"trained_per_second": n_answers / float(np.median(seconds[1:])), "peak_memory_mib": peak_memory_mib()}


def main() -> None:
    """Measure what has no row yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=1, help="updates that are counted (default: %(default)s)")
    parser.add_argument("--one", nargs=2, metavar=("SUBJECT", "SHAPE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        th.set_num_threads(1)
        # datasets pickles what is in __main__ by value, with all that it refers to
        from benchmarks.language_model import speed

        subject, shape = args.one[0], Shape(*json.loads(args.one[1]))
        print(json.dumps(getattr(speed, subject)(shape, args.updates)))
        return
    done = {(row["subject"], Shape(*row["shape"]), row["repeat"]) for row in common.rows(OUTPUT)}
    OUTPUT.parent.mkdir(exist_ok=True)
    for repeat in range(N_REPEATS):
        for shape in SHAPES:
            for subject in SUBJECTS:
                if (subject, shape, repeat) in done or (shape == LONG and repeat > 0):
                    continue
                if subject == "mixed" and shape.n_minibatches == 1:
                    continue
                figures = in_process(__spec__.name, "--updates", args.updates, "--one", subject, json.dumps(shape))
                row = {"subject": subject, "shape": shape, "repeat": repeat, **figures}
                print(row, flush=True)
                with OUTPUT.open("a") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
