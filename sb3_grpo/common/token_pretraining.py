"""Warm start of policies for text: next-token prediction on worked examples."""

from typing import Any

import torch as th

from sb3_grpo.common.token_network import TokenNetworkMixin, padded_tokens
from sb3_grpo.common.tokens import PAD


class PretrainingMixin(TokenNetworkMixin):
    """What lets policies of text learn from worked examples."""

    def pretrain(
        self,
        texts: list[str] | list[tuple[str, str]],
        n_epochs: int = 3,
        batch_size: int = 64,
        learning_rate: float = 1e-3,
        progress_bar: bool = False,
    ) -> list[float]:
        """
        Warm start by next-token prediction on worked examples: reinforcement learning needs some right answers to begin with.

        :param texts: Examples. Of a pair (prompt, answer) only the answer is learned; of a single text all of it
        :param n_epochs: How many times each example is seen
        :param batch_size: Examples per gradient step
        :param learning_rate: Learning rate of an optimizer of its own, whose state is dropped afterwards
        :param progress_bar: Show a progress bar
        :return: The mean loss per token, in nats, over the minibatches of each epoch
        """
        if not texts or isinstance(texts, str):
            raise ValueError(f"pretrain() needs a list of at least one text or pair (prompt, answer), got {texts!r}.")
        tokens, n_given = zip(*(self._encode_example(example) for example in texts), strict=True)
        longest = max(len(each) for each in tokens)
        padded = padded_tokens(list(tokens), longest, self.device)
        given = th.as_tensor(n_given, device=self.device)[:, None]
        places = th.arange(longest, device=self.device)
        learned = (places >= given) & (padded != PAD)

        self.set_training_mode(True)
        optimizer = self.optimizer_class(
            [parameter for group in self.optimizer.param_groups for parameter in group["params"]],
            lr=learning_rate,  # type: ignore[call-arg]
        )
        losses = []
        epochs: Any = range(n_epochs)
        if progress_bar:
            from tqdm.rich import tqdm

            epochs = tqdm(epochs, desc="warm start")
        for _ in epochs:
            total = th.zeros((), device=self.device)
            order = th.randperm(len(padded), device=self.device)
            for rows in order.split(batch_size):
                batch, mask = padded[rows], learned[rows]
                hidden = self.read(batch[:, :-1].clamp(min=0), places[:-1].expand(len(rows), -1))
                log_probs = self.action_net(hidden).log_softmax(dim=-1)
                wanted = log_probs.gather(2, batch[:, 1:, None].clamp(min=0)).squeeze(2)
                loss = -th.where(mask[:, 1:], wanted, 0.0).sum() / mask[:, 1:].sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.detach() * len(rows)
            losses.append(total.item() / len(padded))
        optimizer.zero_grad()
        self.set_training_mode(False)
        return losses

    def _encode_example(self, example: str | tuple[str, str]) -> tuple[list[int], int]:
        """
        :param example: A text, or prompt and answer
        :return: Its tokens, and how many of them are given
        """
        if isinstance(example, str):
            tokens = self._encode(example, end=True)
            if len(tokens) < 2:
                raise ValueError("There is nothing to learn from an empty text.")
            return tokens, 1
        if len(example) != 2:
            raise ValueError(f"An example is a text or a pair (prompt, answer), got {example!r}.")
        given, learned = self._encode(example[0]), self._encode(example[1], end=True)
        if len(given) + len(learned) > self.network_kwargs["context"]:
            raise ValueError(
                f"The context has room for {self.network_kwargs['context']} tokens (policy_kwargs=dict(context=...)), "
                f"but prompt, answer and end of {example!r} have {len(given) + len(learned)}."
            )
        return [*given, *learned], len(given)
