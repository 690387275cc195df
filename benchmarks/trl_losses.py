"""
trl's advantages, losses and gradients on made-up numbers, against which the presets are tested:
``python benchmarks/trl_losses.py``, in an environment with trl, writes ``tests/trl_losses.json``.

Nothing is generated and no network is evaluated: the trainers are given the answers' lengths, rewards and log probabilities,
and everything from there on is their own code. The file names the version of trl that it was generated with.
"""

import json
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch as th
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

TARGET = Path(__file__).resolve().parents[1] / "tests" / "trl_losses.json"
N_GROUPS, GROUP_SIZE, LONGEST = 3, 4, 9
N_ANSWERS = N_GROUPS * GROUP_SIZE
# Names of presets, and the same in trl's terms
CASES: dict[str, dict[str, Any]] = {
    "grpo-paper": {"loss_type": "grpo", "beta": 0.04, "use_bias_correction_kl": False},
    # The newer KL term, weighted by the ratio: kl_estimator="k3"
    "grpo-paper, k3": {"loss_type": "grpo", "beta": 0.04, "use_bias_correction_kl": True},
    "dr-grpo": {"loss_type": "dr_grpo", "beta": 0.0, "scale_rewards": "none", "max_completion_length": 3000},
    "gspo": {
        "loss_type": "grpo",
        "beta": 0.0,
        "importance_sampling_level": "sequence",
        "epsilon": 3e-4,
        "epsilon_high": 4e-4,
    },
    "dapo-paper": {"loss_type": "dapo", "beta": 0.0, "epsilon_high": 0.28},
    "prorl": {"loss_type": "dapo", "beta": 1e-3, "epsilon_high": 0.4, "use_bias_correction_kl": False},
    "rloo": {"beta": 0.03},
    # Where the weights of the made-up numbers are bounded: clip_range_high=0.5
    "cispo": {"loss_type": "cispo", "beta": 0.0, "epsilon_high": 1.5},
    "sapo": {"loss_type": "sapo", "beta": 0.0},
}


def numbers() -> dict[str, th.Tensor]:
    """
    :return: Lengths and rewards of answers, (N,), and the log probabilities of their tokens, (N, T): under the policy that
        generated them, the current policy, and the reference
    """
    generator = th.Generator().manual_seed(0)

    def normal(*shape: int) -> th.Tensor:
        return th.randn(*shape, generator=generator, dtype=th.float64)

    old = -normal(N_ANSWERS, LONGEST).abs()
    return {
        "lengths": th.randint(1, LONGEST + 1, (N_ANSWERS,), generator=generator),
        "rewards": normal(N_ANSWERS),
        "old": old,
        # Far enough for all clip ranges
        "new": old + 0.4 * normal(N_ANSWERS, LONGEST),
        "ref": old + 0.4 * normal(N_ANSWERS, LONGEST),
    }


def measure(name: str, given: dict[str, th.Tensor]) -> dict[str, Any]:
    """
    :param name: One of ``CASES``
    :param given: See :func:`numbers`
    :return: Advantages of the answers, the loss, and its gradient with respect to the log probabilities
    """
    is_rloo = name == "rloo"
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "<eos>": 1, "<pad>": 2})), eos_token="<eos>", pad_token="<pad>"
    )
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    network = GPT2LMHeadModel(GPT2Config(vocab_size=3, n_positions=16, n_embd=2, n_layer=1, n_head=1))
    # An RLOO update is on-policy
    new = given["old" if is_rloo else "new"].clone().requires_grad_()
    with tempfile.TemporaryDirectory() as folder:
        network.save_pretrained(folder)  # trl loads it again, as the reference
        settings: dict[str, Any] = {
            "output_dir": folder,
            "num_generations": GROUP_SIZE,
            "per_device_train_batch_size": N_ANSWERS,
            "steps_per_generation": 1,
            "num_iterations": 2,
            "max_completion_length": LONGEST,
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "report_to": "none",
            **CASES[name],
        }
        trainer: Any = (RLOOTrainer if is_rloo else GRPOTrainer)(
            model=folder,
            reward_funcs=lambda **_: [0.0] * N_ANSWERS,
            args=(RLOOConfig if is_rloo else GRPOConfig)(**settings),
            train_dataset=Dataset.from_list([{"prompt": "a"}] * N_ANSWERS),
            processing_class=tokenizer,
        )
    lengths = given["lengths"].tolist()
    longest = max(lengths)
    answers = [[0] * (length - 1) + [1] for length in lengths]

    def log_probs(model: Any, *args: Any, **kwargs: Any) -> tuple[th.Tensor, th.Tensor, None]:
        values = given["ref"] if model is trainer.ref_model else new if th.is_grad_enabled() else given["old"]
        return values[:, :longest], th.zeros(N_ANSWERS, longest), None

    generated = ([[0]] * N_ANSWERS, answers, None, ["a"] * N_ANSWERS, None, {}, None, None)
    # RLOOTrainer has neither tools nor log probabilities of another sampler
    trainer._generate = lambda *args: (*generated[:2], generated[3]) if is_rloo else generated
    trainer._get_per_token_logps_and_entropies = log_probs
    trainer._calculate_rewards = lambda *args: given["rewards"][:, None]
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    with th.no_grad():
        inputs = trainer._generate_and_score_completions([{"prompt": "a"}] * N_ANSWERS)
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    return {"advantages": inputs["advantages"].tolist(), "loss": loss.item(), "gradient": new.grad.tolist()}


def main() -> None:
    """Write the file."""
    given = numbers()
    content = {
        "versions": {package: version(package) for package in ("trl", "torch")},
        # Added to a group's standard deviation
        "epsilon": 1e-4,
        "given": {key: values.tolist() for key, values in given.items()},
        "expected": {name: measure(name, given) for name in CASES},
    }
    TARGET.write_text(json.dumps(content, indent=1) + "\n")
    print(f"{TARGET}: trl {content['versions']['trl']}")


if __name__ == "__main__":
    main()
