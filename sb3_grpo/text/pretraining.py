"""Warm start of text policies: next-token prediction on worked examples."""

import math
from typing import Any

import torch as th
import torch.nn.functional as F

from sb3_grpo.text.network import TokenNetworkMixin, padded_tokens
from sb3_grpo.text.tokens import PAD
from sb3_grpo.utils.devices import to_device


class PretrainingMixin(TokenNetworkMixin):
    """Lets text policies learn from worked examples."""

    def pretrain(
        self,
        texts: list[str] | list[tuple[str, str]],
        n_epochs: int = 3,
        batch_size: int = 64,
        learning_rate: float = 1e-3,
    ) -> list[float]:
        """
        Warm start by next-token prediction on worked examples, as reinforcement learning needs some right answers to begin
        with.

        :param texts: Worked examples. For a pair (prompt, answer), only the answer is learned; for a single text, all of it
        :param n_epochs: Number of passes over the examples
        :param batch_size: Number of examples per gradient step
        :param learning_rate: Learning rate of a separate optimizer, whose state is discarded afterwards
        :return: For each epoch, the mean loss per token, in nats, averaged over the minibatches
        :raises ValueError: if the loss or the weights are not finite at the end of an epoch. The policy is then restored
        """
        examples: Any = texts if isinstance(texts, str | tuple) else list(texts)
        if not examples or isinstance(examples, str):
            raise ValueError(f"pretrain() needs a list of at least one text or pair (prompt, answer), got {examples!r}.")
        if isinstance(examples, tuple) and len(examples) == 2 and all(isinstance(each, str) for each in examples):
            raise ValueError(f"pretrain() needs a list of examples, got a single pair: write pretrain([{examples!r}]).")
        for name, value in (("n_epochs", n_epochs), ("batch_size", batch_size)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")
        tokens, n_given = zip(*(self._encode_example(example) for example in examples), strict=True)
        padded = padded_tokens(list(tokens), max(len(each) for each in tokens), th.device("cpu"))
        # The tokens to learn are known on the host: there is no need to wait for the device
        learned = (th.arange(padded.shape[1]) >= th.as_tensor(n_given)[:, None]) & (padded != PAD)

        trained = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        before = [parameter.detach().to("cpu", copy=True) for parameter in trained]
        optimizer = self.optimizer_class(trained, lr=learning_rate)  # type: ignore[call-arg]
        self.set_training_mode(True)
        losses = []
        try:
            for _ in range(n_epochs):
                total = th.zeros((), device=self.device)
                for rows in th.randperm(len(padded)).split(batch_size):
                    loss = self._prediction_loss(padded[rows], learned[rows])
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    total += loss.detach() * len(rows)
                losses.append(total.item() / len(padded))
                if not (math.isfinite(losses[-1]) and all(parameter.isfinite().all() for parameter in trained)):
                    with th.no_grad():
                        for parameter, value in zip(trained, before, strict=True):
                            parameter.copy_(value)
                    raise ValueError(
                        f"pretrain() diverged: in epoch {len(losses)} the loss is {losses[-1]:g}, or weights are no longer "
                        f"finite. The policy is as it was before. Use a smaller learning_rate than {learning_rate:g}."
                    )
        finally:
            optimizer.zero_grad()
            self.set_training_mode(False)
        return losses

    def _prediction_loss(self, texts: th.Tensor, learned: th.Tensor) -> th.Tensor:
        """
        :param texts: (n, t) token ids padded on the right, on the host
        :param learned: (n, t) mask of the tokens to predict, on the host
        :return: Mean negative log probability of these tokens
        """
        # A single long example must not make all minibatches that long
        longest = int((texts != PAD).sum(1).max())
        texts, learned = texts[:, :longest], learned[:, :longest]
        targets = texts[:, 1:][learned[:, 1:]]
        read = learned[:, 1:].flatten().nonzero().squeeze(1)
        tokens, targets, read = (to_device(each.numpy(), self.device) for each in (texts[:, :-1].clamp(min=0), targets, read))
        places = th.arange(tokens.shape[1], device=self.device).expand(tokens.shape)
        # The vocabulary can be large: compute logits only for the tokens to predict
        hidden = self.read(tokens, places).flatten(0, 1)[read]
        return F.cross_entropy(self.action_net(hidden), targets)

    def _encode_example(self, example: str | tuple[str, str]) -> tuple[list[int], int]:
        """
        :param example: A text, or a pair (prompt, answer)
        :return: Its tokens, and how many of them are given, i.e. not learned
        """
        if isinstance(example, str):
            tokens = self._encode(example, end=True)
            if len(tokens) < 2:
                raise ValueError("There is nothing to learn from an empty text.")
            return tokens, 1
        if not isinstance(example, tuple | list) or len(example) != 2:
            raise ValueError(f"An example is a text or a pair (prompt, answer), got {example!r:.200}.")
        given, learned = self._encode(example[0]), self._encode(example[1], end=True)
        if len(given) + len(learned) > self.network_kwargs["context"]:
            raise ValueError(
                f"The context has room for {self.network_kwargs['context']} tokens (policy_kwargs=dict(context=...)), "
                f"but prompt, answer and end of {example!r} have {len(given) + len(learned)}."
            )
        return [*given, *learned], len(given)
