"""The trl peer of :mod:`benchmarks.text_speed`: GRPOTrainer on the same task, as fast as possible on CPU."""

import gc
import tempfile
import time
from typing import Any

import torch as th

from benchmarks import text_setting as setting
from benchmarks.timing import Stopwatch, peak_memory_mib

PAD_TOKEN, EOS_TOKEN = "<pad>", "<eos>"


def _tokenizer() -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [*setting.task().alphabet(), EOS_TOKEN, PAD_TOKEN]
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=EOS_TOKEN, pad_token=PAD_TOKEN, padding_side="left")


def _network(architecture: str, tokenizer: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    width, n_heads, n_layers = (setting.NETWORK[key] for key in ("width", "n_heads", "n_layers"))
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    th.manual_seed(setting.SEED)
    if architecture == "gpt2":
        # Learned positions, layer norm, GELU, four times the width in between: as in CausalTransformer
        config = GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=16,
            n_embd=width,
            n_layer=n_layers,
            n_head=n_heads,
            activation_function="gelu",
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            **ids,
        )
        return GPT2LMHeadModel(config)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            max_position_embeddings=16,
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=n_layers,
            num_attention_heads=n_heads,
            num_key_value_heads=n_heads,
            **ids,
        )
    )


def _warm_start(network: th.nn.Module, tokenizer: Any) -> None:
    """
    Like our policy's ``pretrain``. Without it an answer would hardly ever end before the last token, and all would be
    wrong: with answers as long as ours, and groups in which some are right, the work is the same.
    """
    examples = [
        (tokenizer.encode(prompt), [*tokenizer.encode(answer), tokenizer.eos_token_id])
        for prompt, answer in setting.warm_start_examples()
    ]
    longest = max(len(prompt) + len(answer) for prompt, answer in examples)
    ignored = -100
    tokens, labels = [], []
    for prompt, answer in examples:
        n_padding = longest - len(prompt) - len(answer)
        tokens.append([*prompt, *answer, *[tokenizer.pad_token_id] * n_padding])
        labels.append([*[ignored] * len(prompt), *answer, *[ignored] * n_padding])
    all_tokens, all_labels = th.tensor(tokens), th.tensor(labels)
    optimizer = th.optim.Adam(network.parameters(), lr=setting.WARM_START["learning_rate"])
    for _ in range(setting.WARM_START["n_epochs"]):
        for rows in th.randperm(len(all_tokens)).split(setting.WARM_START["batch_size"]):
            loss = network(input_ids=all_tokens[rows], labels=all_labels[rows]).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def _arguments(folder: str, n_updates: int) -> Any:
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=folder,
        max_steps=(n_updates + 1) * setting.N_EPOCHS * setting.N_MINIBATCHES,
        # The algorithm, as in SETTINGS
        num_generations=setting.GROUP_SIZE,
        generation_batch_size=setting.N_ANSWERS,
        per_device_train_batch_size=setting.N_ANSWERS // setting.N_MINIBATCHES,
        gradient_accumulation_steps=1,
        num_iterations=setting.N_EPOCHS,
        max_completion_length=setting.MAX_ANSWER_TOKENS,
        learning_rate=setting.LEARNING_RATE,
        lr_scheduler_type="constant",
        max_grad_norm=setting.MAX_GRAD_NORM,
        beta=0.0,
        epsilon=setting.CLIP_RANGE,
        epsilon_high=setting.CLIP_RANGE_HIGH,
        loss_type="dapo",
        scale_rewards="group",
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        # Nothing that costs time and is not needed
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=setting.SEED,
    )


def _data() -> Any:
    """
    :return: As many prompts as the task has; the trainer draws from them
    """
    from datasets import Dataset

    task = setting.task()
    items = [task.item(index) for index in range(task.n_items)]
    return Dataset.from_list([{"prompt": item.prompt, "answer": item.answer} for item in items])


def train(n_updates: int, architecture: str) -> dict[str, float]:
    """
    Train for a while. Building, warm start and the first update are not counted.

    :param n_updates: Number of updates that are counted, each with 512 new answers
    :param architecture: "llama" or "gpt2"
    :return: Rates, and peak memory in MiB
    """
    from transformers import TrainerCallback
    from transformers.utils import logging
    from trl import GRPOTrainer

    logging.set_verbosity_error()
    stopwatch = Stopwatch(time.perf_counter)
    counted = {"answers": 0.0, "tokens": 0.0, "right": 0.0}
    ends: list[dict[str, float]] = []  # of each optimizer step

    def reward(completions: list[str], completion_ids: list[list[int]], answer: list[str], **_: Any) -> list[float | None]:
        rewards: list[float | None] = [
            float(completion == right) for completion, right in zip(completions, answer, strict=True)
        ]
        counted["answers"] += len(completions)
        counted["tokens"] += sum(map(len, completion_ids))
        counted["right"] += rewards.count(1.0)
        return rewards

    class Clock(TrainerCallback):
        """Records the time after each step."""

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            rollout = stopwatch.spent["_generate_and_score_completions"]
            ends.append({"seconds": time.perf_counter(), **counted, "rollout": rollout})

    tokenizer = _tokenizer()
    network = _network(architecture, tokenizer)
    _warm_start(network, tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        trainer: Any = GRPOTrainer(
            model=network,
            reward_funcs=reward,
            args=_arguments(folder, n_updates),
            train_dataset=_data(),
            processing_class=tokenizer,
            callbacks=[Clock()],
        )
        stopwatch.watch(trainer, "_generate_and_score_completions")
        gc.collect()
        trainer.train()
    per_update = setting.N_EPOCHS * setting.N_MINIBATCHES
    assert len(ends) == per_update * (n_updates + 1)
    # The answers are generated at the beginning of the first of these steps
    total = {key: ends[-1][key] - ends[per_update - 1][key] for key in ends[0]}
    seconds = total["seconds"]
    return {
        "answers_per_second": total["answers"] / seconds,
        "tokens_per_second": total["tokens"] / seconds,
        "rollout_tokens_per_second": total["tokens"] / total["rollout"],
        "seconds_per_update": seconds / n_updates,
        "tokens_per_answer": total["tokens"] / total["answers"],
        "right": total["right"] / total["answers"],
        "peak_memory_mib": peak_memory_mib(),
    }
