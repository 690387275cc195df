"""Texts that begin alike are read once."""

from typing import Any

import numpy as np
import pytest
import torch as th
from digit_texts import LENGTH, Digits
from language_models import SPACES, make_language_model

from sb3_grpo.text.causal_lm import CausalLMPolicy
from sb3_grpo.text.policies import TokenPolicy
from sb3_grpo.text.tokens import PAD
from sb3_grpo.text.tree import TokenSteps, token_tree

pytest.importorskip("transformers")
pytest.importorskip("peft")


def make_texts(n: int, seed: int, n_tokens: int = 2) -> np.ndarray:
    """Texts of which many begin alike, some are equal, and some are the beginning of another one."""
    rng = np.random.default_rng(seed)
    texts = rng.integers(n_tokens, size=(n, LENGTH))
    texts[np.arange(LENGTH) >= rng.integers(1, LENGTH + 1, size=n)[:, None]] = PAD
    return texts


@pytest.mark.parametrize("max_tokens", [1, LENGTH, 40, 10_000])
@pytest.mark.parametrize("seed", range(3))
def test_each_token_attends_to_its_own_text(seed: int, max_tokens: int) -> None:
    texts = make_texts(30, seed)
    tree = token_tree(texts, max_tokens)
    n_columns = tree.tokens.shape[1]
    mask = tree.mask(th.device("cpu"))[:, 0].numpy()
    for text, places in zip(texts, tree.places, strict=True):
        for last in range((text != PAD).sum()):
            row, column = divmod(int(places[last]), n_columns)
            seen = np.flatnonzero(mask[row, column])
            assert tree.tokens[row, seen].tolist() == text[: last + 1].tolist()
            assert tree.positions[row, seen].tolist() == list(range(last + 1))
    assert mask.any(axis=2).all(), "an empty row of the mask would give NaN"
    assert n_columns <= max(max_tokens, LENGTH)
    if max_tokens == 10_000:
        assert mask.shape == (1, n_columns, n_columns)
        assert n_columns == len({tuple(text[: last + 1]) for text in texts for last in range((text != PAD).sum())})


def test_a_long_tree_is_split_evenly() -> None:
    prompt = np.zeros((64, 8), np.int64)
    answers = np.random.default_rng(0).integers(10, size=(64, 4))
    texts = np.concatenate([prompt, answers], axis=1)
    lengths = (np.diff(token_tree(texts, 100).ends, axis=1) != 1).sum(1)
    assert len(lengths) > 1
    assert token_tree(texts, 100).tokens.shape[1] < 90, "no row is filled before another has begun"


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        (None, {}),
        ("llama", {}),
        ("llama", {"gradient_checkpointing": True}),
        ("llama", {"lora": {"r": 4, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False}}),
        ("gpt2", {"lora": {"target_modules": ["c_attn"], "fan_in_fan_out": True, "init_lora_weights": False}}),
    ],
)
def test_the_gradient_is_that_of_separate_texts(name: str | None, kwargs: Any) -> None:
    th.manual_seed(0)
    given = dict(lr_schedule=lambda _: 1e-2, **kwargs)
    policy: Any = (
        TokenPolicy(*SPACES, **given) if name is None else CausalLMPolicy(*SPACES, model=make_language_model(name), **given)
    )
    policy.double()
    policy.set_training_mode(True)
    texts = make_texts(20, seed=1, n_tokens=3)
    lengths = (texts != PAD).sum(1)
    text, last = th.tensor([(text, last) for text, length in enumerate(lengths) for last in range(length)]).T
    actions, weights = th.randint(Digits.vocab_size, (len(text),)), th.randn(len(text), dtype=th.float64)

    def gradient(log_prob: th.Tensor) -> th.Tensor:
        trained = [parameter for group in policy.optimizer.param_groups for parameter in group["params"]]
        return th.cat([each.flatten() for each in th.autograd.grad((weights * log_prob).sum(), trained)])

    shared = policy.get_distribution(TokenSteps(texts, text, last)).log_prob(actions)
    separate = []
    for row, length in zip(texts, lengths, strict=True):
        hidden = policy.read(th.as_tensor(row[None, :length]), th.arange(length)[None])[0]
        separate.append(policy.logits(hidden)[:, : Digits.vocab_size].log_softmax(-1))
    expected = th.cat(separate).gather(1, actions[:, None]).squeeze(1)
    th.testing.assert_close(shared, expected, rtol=0, atol=1e-10)
    # Llama's norms compute in single precision
    wanted = gradient(expected)
    assert (gradient(shared) - wanted).norm() < (1e-9 if name in (None, "gpt2") else 1e-5) * wanted.norm()
