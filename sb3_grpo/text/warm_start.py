"""Warm start of text policies: next-token prediction on worked examples."""

import math
from dataclasses import dataclass
from typing import Any

import torch as th
import torch.nn.functional as F

from sb3_grpo.text.tokens import PAD, encode_prompt, padded_tokens
from sb3_grpo.utils.devices import to_device
from sb3_grpo.utils.parameters import Whole
from sb3_grpo.utils.user_warnings import warn_user


@dataclass(frozen=True)
class Pretraining:
    """
    What a warm start has reached.

    :param losses: For each epoch, the mean loss per token, in nats, averaged over the minibatches
    :param accuracy: Share of the worked examples that the policy answers right afterwards, with its most likely tokens
    """

    losses: list[float]
    accuracy: float


def pretrain(
    policy: Any,
    texts: list[str] | list[tuple[str, str]],
    n_epochs: int = 3,
    batch_size: int = 64,
    learning_rate: float = 1e-3,
) -> Pretraining:
    """
    Warm start by next-token prediction on worked examples, as reinforcement learning needs some right answers to begin
    with. Warns if the policy then answers none of the prompts right.

    :param texts: Worked examples. For a pair (prompt, answer), only the answer is learned; for a single text, all of it
    :param n_epochs: Number of passes over the examples
    :param batch_size: Number of examples per gradient step
    :param learning_rate: Learning rate of a separate optimizer, whose state is discarded afterwards
    :return: The losses, and the share of the examples that the policy now answers right
    :raises ValueError: if the loss or the weights are not finite at the end of an epoch. The policy is then restored
    """
    examples: list[Any] = [] if isinstance(texts, str | tuple) else list(texts)
    if not examples:
        raise ValueError(
            f"pretrain() needs a list of at least one text or pair (prompt, answer), got {texts!r}. "
            "For a single one write pretrain([...])."
        )
    Whole().check("n_epochs", n_epochs)
    Whole().check("batch_size", batch_size)
    tokens, n_given = zip(*(_encode_example(policy, example) for example in examples), strict=True)
    padded = padded_tokens(tokens)
    # The tokens to learn are known on the host: there is no need to wait for the device
    learned = (th.arange(padded.shape[1]) >= th.as_tensor(n_given)[:, None]) & (padded != PAD)

    before = {name: value.to("cpu", copy=True) for name, value in policy.state_dict().items()}
    trained = [parameter for group in policy.optimizer.param_groups for parameter in group["params"]]
    optimizer = policy.optimizer_class(trained, lr=learning_rate)
    policy.set_training_mode(True)
    losses = []
    try:
        for _ in range(n_epochs):
            total = th.zeros((), device=policy.device)
            for rows in th.randperm(len(padded)).split(batch_size):
                loss = F.cross_entropy(*_predictions(policy, padded[rows], learned[rows]))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.detach() * len(rows)
            losses.append(total.item() / len(padded))
            if not (math.isfinite(losses[-1]) and all(parameter.isfinite().all() for parameter in trained)):
                policy.load_state_dict(before)
                raise ValueError(
                    f"pretrain() diverged: in epoch {len(losses)} the loss is {losses[-1]:g}, or weights are no longer "
                    f"finite. The policy is as it was before. Use a smaller learning_rate than {learning_rate:g}."
                )
    finally:
        optimizer.zero_grad()
        policy.set_training_mode(False)
    accuracy = _share_right(policy, padded, learned, batch_size)
    if accuracy == 0.0 and not all(isinstance(example, str) for example in examples):
        warn_user(
            f"pretrain() ended with a loss of {losses[-1]:.3g} nats per token, and the policy answers none of the "
            f"{len(examples)} examples right: answers that are always wrong teach nothing afterwards. More n_epochs (now "
            f"{n_epochs}) or a larger learning_rate (now {learning_rate:g}) may help."
        )
    return Pretraining(losses, accuracy)


@th.no_grad()
def _share_right(policy: Any, texts: th.Tensor, learned: th.Tensor, batch_size: int) -> float:
    """
    :param policy: A text policy
    :param texts: (n, t) token ids padded on the right, on the host
    :param learned: (n, t) mask of the tokens to predict, on the host
    :param batch_size: Number of texts to read at a time
    :return: Share of the texts whose tokens to predict all are the most likely ones, so that ``generate`` writes them
    """
    n_wrong = 0
    for rows in th.arange(len(texts)).split(batch_size):
        logits, targets = _predictions(policy, texts[rows], learned[rows])
        text = th.repeat_interleave(learned[rows].sum(1))
        n_wrong += len(text[(logits.argmax(1) != targets).cpu()].unique())
    return 1.0 - n_wrong / len(texts)


def _predictions(policy: Any, texts: th.Tensor, learned: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
    """
    :param policy: A text policy
    :param texts: (n, t) token ids padded on the right, on the host
    :param learned: (n, t) mask of the tokens to predict, on the host
    :return: (k, vocab_size) logits of the tokens to predict, and (k,) these tokens
    """
    # A single long example must not make all minibatches that long
    longest = int((texts != PAD).sum(1).max())
    texts, learned = texts[:, :longest], learned[:, 1:longest]
    read = learned.flatten().nonzero().squeeze(1)
    arrays = (texts[:, :-1].clamp(min=0), texts[:, 1:][learned], read)
    tokens, targets, read = (to_device(each.numpy(), policy.device) for each in arrays)
    places = th.arange(tokens.shape[1], device=policy.device).expand(tokens.shape)
    # The vocabulary can be large: compute logits only for the tokens to predict
    hidden = policy.read(tokens, places).flatten(0, 1)[read]
    return policy.logits(hidden)[:, : policy.observation_space.tokenizer.vocab_size].float(), targets


def _encode_example(policy: Any, example: str | tuple[str, str]) -> tuple[list[int], int]:
    """
    :param policy: A text policy
    :param example: A text, or a pair (prompt, answer)
    :return: Its tokens, and how many of them are given, i.e. not learned
    """
    pair = ("", example) if isinstance(example, str) else example
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ValueError(f"An example is a text or a pair (prompt, answer), got {example!r:.200}.")
    tokenizer, room = policy.observation_space.tokenizer, policy.network_kwargs["context"]
    given, _ = (encode_prompt(tokenizer, text) for text in pair)
    tokens = encode_prompt(tokenizer, "".join(pair))
    if tokens[: len(given)] != given:
        # A token would be shared by prompt and answer, but the agent reads the prompt alone
        tokens = [*given, *tokenizer.encode(pair[1])]
    tokens.append(tokenizer.eos_id)
    if not 2 <= len(tokens) <= room:
        raise ValueError(
            f"With its end, an example must have from 2 to {room} tokens, for which the context has room "
            f"(policy_kwargs=dict(context=...)), but {example!r} has {len(tokens)}."
        )
    return tokens, max(1, len(given))
