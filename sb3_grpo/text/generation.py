"""Generates answers to many prompts at a time, with one key/value cache per batch."""

import torch as th

from sb3_grpo.common.sampling import unchecked_distributions
from sb3_grpo.text.network import TokenNetworkMixin, padded_tokens
from sb3_grpo.text.tokens import PAD
from sb3_grpo.text.transformer import SlotCache


class GenerationMixin(TokenNetworkMixin):
    """Lets text policies answer prompts."""

    def generate(
        self,
        prompts: list[str],
        max_new_tokens: int | None = None,
        deterministic: bool = True,
        batch_size: int = 512,
    ) -> list[str]:
        """
        Answer prompts. Like ``predict``, this leaves the policy in evaluation mode.

        :param prompts: The prompts
        :param max_new_tokens: Maximum length of an answer in tokens; ``None``: as much as the context has room for after the
            longest prompt of the batch
        :param deterministic: Whether to take the most likely token at each position, or to sample
        :param batch_size: Number of prompts to answer at a time
        :return: The answers
        """
        if isinstance(prompts, str):
            raise ValueError(f"generate() needs a list of prompts, got the text {prompts!r}: write generate([{prompts!r}]).")
        for name, value in (("max_new_tokens", max_new_tokens), ("batch_size", batch_size)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")
        self.set_training_mode(False)
        tokenizer = self.observation_space.tokenizer
        encoded = [self._encode(prompt) for prompt in prompts]
        room = self.network_kwargs["context"]
        for prompt, tokens in zip(prompts, encoded, strict=True):
            if len(tokens) == room:
                raise ValueError(
                    f"The context has room for {room} tokens (policy_kwargs=dict(context=...)), and the prompt {prompt!r} "
                    "takes all of them: there is none left for an answer."
                )
        answers = []
        for begin in range(0, len(encoded), batch_size):
            batch = encoded[begin : begin + batch_size]
            longest = max(len(tokens) for tokens in batch)
            n_new = min(room - longest, room if max_new_tokens is None else max_new_tokens)
            texts = self.generate_tokens(padded_tokens(batch, longest, self.device), n_new, deterministic).cpu().numpy()
            # Padding is not a token: a tokenizer may not know it
            written = [row[len(tokens) :] for row, tokens in zip(texts, batch, strict=True)]
            answers += [tokenizer.decode(row[row != PAD]) for row in written]
        return answers

    @th.inference_mode()
    @unchecked_distributions()
    def generate_tokens(self, prompts: th.Tensor, max_new_tokens: int, deterministic: bool = False) -> th.Tensor:
        """
        Continue texts until each has ended. The host waits for the device only every 16 tokens, to stop early.

        :param prompts: (n, P) token ids padded on the right, at least one token each
        :param max_new_tokens: Maximum number of tokens to generate
        :param deterministic: Whether to take the most likely token at each position, or to sample
        :return: (n, P + max_new_tokens) prompts and answers, padded on the right
        """
        n, prompt_length = prompts.shape
        eos_id = self.observation_space.tokenizer.eos_id
        texts = prompts.new_full((n, prompt_length + max_new_tokens), PAD)
        texts[:, :prompt_length] = prompts
        lengths = (prompts != PAD).sum(dim=1, keepdim=True)
        ended = th.zeros_like(lengths, dtype=th.bool)
        cache = None if self._has_own_distribution else SlotCache(n, texts.shape[1])
        tokens, places = prompts.clamp(min=0), th.arange(prompt_length, device=prompts.device).expand(n, -1)  # to read next
        for i in range(max_new_tokens):
            if cache is None:
                tokens = self._sample_uncached(texts[:, : prompt_length + i], deterministic)[0][:, None]
            else:
                cache.begin(None, places, prompt_length + i)
                hidden = self.read(tokens, places, cache)
                if i == 0:
                    hidden = hidden.take_along_dim(lengths[..., None] - 1, dim=1)
                tokens = self._sample(hidden[:, 0], deterministic)[0][:, None]
            texts.scatter_(1, lengths, th.where(ended, PAD, tokens))
            places, lengths = lengths, lengths + (~ended).long()
            ended |= tokens == eos_id
            if i % 16 == 15 and bool(ended.all()):
                break
        return texts
