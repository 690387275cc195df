"""Policies for text: a causal transformer over the tokens written so far chooses the next one."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import nn

from sb3_grpo.common.decoding import CachedReader
from sb3_grpo.common.policies import ActorPolicy, unchecked_distributions
from sb3_grpo.common.tokens import PAD, TokenSpace, TokenSteps
from sb3_grpo.common.transformer import CausalTransformer, SlotCache


class TokenNetworkMixin(ActorCriticPolicy):
    """
    What policies of text have in common, with or without a critic. See :class:`TokenPolicy` for the parameters.
    """

    observation_space: TokenSpace
    network: nn.Module

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        lr_schedule: Schedule,
        *args: Any,
        n_layers: int = 2,
        width: int = 64,
        n_heads: int = 4,
        context: int | None = None,
        autocast: bool = False,
        compile: bool = False,
        **kwargs: Any,
    ):
        if not isinstance(observation_space, TokenSpace):
            raise ValueError(
                f"{type(self).__name__} reads token ids: it needs an environment whose observation space is a "
                f"sb3_grpo.common.tokens.TokenSpace, such as sb3_grpo.envs:VerifierText-v0, got {observation_space}."
            )
        vocab_size = observation_space.tokenizer.vocab_size
        if not (isinstance(action_space, spaces.Discrete) and action_space.n == vocab_size):
            raise ValueError(
                f"{type(self).__name__} chooses tokens: the action space must be Discrete({vocab_size}), got {action_space}."
            )
        length = observation_space.shape[0]
        if context is not None and context < length:
            raise ValueError(f"context={context} is shorter than the {length} tokens of an observation.")
        self.network_kwargs: dict[str, Any] = dict(n_layers=n_layers, width=width, n_heads=n_heads, context=context or length)
        self.autocast = autocast
        self.compile_network = compile
        super().__init__(observation_space, action_space, lr_schedule, *args, **kwargs)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = super()._get_constructor_parameters()
        data.update(self.network_kwargs, autocast=self.autocast, compile=self.compile_network)
        return data

    def _make_network(self) -> tuple[nn.Module, nn.Module]:
        """
        :return: A :class:`SequenceModel`, and the layer from its hidden states to logits
        """
        vocab_size = self.observation_space.tokenizer.vocab_size
        network = CausalTransformer(vocab_size, **self.network_kwargs)
        head = nn.Linear(network.width, vocab_size)
        # As in SB3's policies: nearly the same probability for all actions
        nn.init.orthogonal_(head.weight, gain=0.01)
        nn.init.zeros_(head.bias)
        return network, head

    def _build(self, lr_schedule: Schedule) -> None:
        """
        Create the network and the optimizer.

        :param lr_schedule: Learning rate schedule
            lr_schedule(1) is the initial learning rate
        """
        self.network, self.action_net = self._make_network()
        self._build_critic()
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        self.optimizer = self.optimizer_class(trained, lr=lr_schedule(1), **self.optimizer_kwargs)  # type: ignore[call-arg]

    def _build_critic(self) -> None:
        """There is none."""

    def read(self, tokens: th.Tensor, positions: th.Tensor, cache: SlotCache | None = None) -> th.Tensor:
        """
        The network's forward pass, in bfloat16 where that was asked for and the device is a GPU. See :class:`SequenceModel`.
        """
        on_gpu = tokens.device.type == "cuda"
        with th.autocast(tokens.device.type, dtype=th.bfloat16, enabled=self.autocast and on_gpu):
            # The shapes of a cached pass change with every token, and torch.compile gives up after a few of them
            network = self._compiled(on_gpu) if cache is None else self.network
            return network(tokens, positions, cache).float()

    def _compiled(self, on_gpu: bool) -> Callable[..., th.Tensor]:
        if not (self.compile_network and on_gpu):
            return self.network
        if "_network_compiled" not in vars(self):
            # Not registered as a module: its parameters are those of the network
            object.__setattr__(self, "_network_compiled", th.compile(self.network, dynamic=True))
        return vars(self)["_network_compiled"]

    def __getstate__(self) -> dict[str, Any]:
        # Made anew where they are needed
        return {key: value for key, value in vars(self).items() if key not in ("_network_compiled", "_reader")}

    def _hidden(self, obs: th.Tensor | TokenSteps) -> th.Tensor:
        """
        :param obs: (n, L) observations, or (M,) steps of several texts
        :return: (n or M, width) hidden state of the last token
        """
        if isinstance(obs, TokenSteps):
            texts, text, last = obs.texts, obs.text, obs.last
        else:
            _check_dtype(str(obs.dtype), obs.is_floating_point())
            texts = obs.long()
            last = (texts != PAD).sum(dim=1) - 1
            text = th.arange(len(texts), device=texts.device)
            if texts.device.type == "cpu":
                texts = texts[:, : int(last.max()) + 1]
        positions = th.arange(texts.shape[1], device=texts.device).expand(texts.shape)
        return self.read(texts.clamp(min=0), positions)[text, last]

    def get_distribution(self, obs: PyTorchObs | TokenSteps) -> Distribution:
        """
        Get the current policy distribution given the observations.

        :param obs: (n, L) observations, or (M,) steps of several texts
        :return: the action distribution.
        """
        return self._get_action_dist_from_latent(self._hidden(obs))  # type: ignore[arg-type]

    def _sample(self, hidden: th.Tensor, deterministic: bool = False) -> tuple[th.Tensor, th.Tensor]:
        """
        :param hidden: (n, width)
        :param deterministic: Choose the most likely token
        :return: (n,) tokens, and (n,) their log probabilities
        """
        with unchecked_distributions():
            distribution = self._get_action_dist_from_latent(hidden).distribution
        log_probs = distribution.logits  # type: ignore[union-attr]
        if deterministic:
            tokens = log_probs.argmax(dim=-1)
        else:
            tokens = (log_probs - th.empty_like(log_probs).exponential_().log_()).argmax(dim=-1)
        return tokens, log_probs.gather(1, tokens[:, None]).squeeze(1)

    def generate(
        self,
        prompts: list[str],
        max_new_tokens: int | None = None,
        deterministic: bool = True,
        batch_size: int = 512,
    ) -> list[str]:
        """
        Answer prompts. Like ``predict``, it leaves the policy in evaluation mode.

        :param prompts: The prompts
        :param max_new_tokens: Length of an answer at the most, in tokens; ``None``: as much as the context has room for after
            the longest prompt of the batch
        :param deterministic: Take the most likely token at each place, or sample
        :param batch_size: Prompts at a time
        :return: The answers
        """
        if max_new_tokens is not None and max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}.")
        self.set_training_mode(False)
        tokenizer = self.observation_space.tokenizer
        encoded = [self._encode(prompt) for prompt in prompts]
        room = self.network_kwargs["context"]
        answers = []
        for begin in range(0, len(encoded), batch_size):
            batch = encoded[begin : begin + batch_size]
            longest = max(len(tokens) for tokens in batch)
            n_new = min(room - longest, room if max_new_tokens is None else max_new_tokens)
            texts = self.generate_tokens(_padded(batch, longest, self.device), n_new, deterministic).cpu().numpy()
            answers += [tokenizer.decode(row[len(tokens) :]) for row, tokens in zip(texts, batch, strict=True)]
        return answers

    @th.inference_mode()
    def generate_tokens(self, prompts: th.Tensor, max_new_tokens: int, deterministic: bool = False) -> th.Tensor:
        """
        Go on with texts until each has ended, without looking at the device in between (but every 16 tokens, to stop early).

        :param prompts: (n, P) token ids padded on the right, at least one token each
        :param max_new_tokens: Tokens to be written at the most
        :param deterministic: Take the most likely token at each place, or sample
        :return: (n, P + max_new_tokens) prompts and answers, padded on the right
        """
        n, prompt_length = prompts.shape
        eos_id = self.observation_space.tokenizer.eos_id
        texts = prompts.new_full((n, prompt_length + max_new_tokens), PAD)
        texts[:, :prompt_length] = prompts
        lengths = (prompts != PAD).sum(dim=1, keepdim=True)
        ended = th.zeros_like(lengths, dtype=th.bool)
        cache = SlotCache(n, texts.shape[1])
        positions = th.arange(prompt_length, device=prompts.device).expand(n, -1)
        cache.begin(None, positions, prompt_length)
        hidden = self.read(prompts.clamp(min=0), positions, cache)
        hidden = hidden.take_along_dim(lengths[..., None] - 1, dim=1)
        for i in range(max_new_tokens):
            tokens = self._sample(hidden[:, 0], deterministic)[0][:, None]
            texts.scatter_(1, lengths, th.where(ended, PAD, tokens))
            places, lengths = lengths, lengths + (~ended).long()
            ended |= tokens == eos_id
            if i == max_new_tokens - 1 or (i % 16 == 15 and bool(ended.all())):
                break
            cache.begin(None, places, prompt_length + i + 1)
            hidden = self.read(tokens, places, cache)
        return texts

    def _encode(self, text: str, end: bool = False) -> list[int]:
        """
        :param text: A text
        :param end: Whether to append the token that ends it
        :return: Its tokens
        """
        tokenizer = self.observation_space.tokenizer
        tokens = [*tokenizer.encode(text), *([tokenizer.eos_id] if end else [])]
        if not 0 < len(tokens) <= self.network_kwargs["context"]:
            raise ValueError(
                f"A text must have from 1 to {self.network_kwargs['context']} tokens (policy_kwargs=dict(context=...)), "
                f"but {text!r} has {len(tokens)}."
            )
        return tokens

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
        padded = _padded(list(tokens), longest, self.device)
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


def _check_dtype(dtype: str, is_floating: bool) -> None:
    if is_floating:
        raise ValueError(
            f"Token ids must be whole numbers, but these observations are {dtype}: has a VecNormalize scaled them? "
            "Use VecNormalize(env, norm_obs=False)."
        )


def _padded(texts: list[list[int]], length: int, device: th.device) -> th.Tensor:
    """
    :param texts: Token ids
    :param length: Of the longest
    :param device: PyTorch device
    :return: (n, length) padded on the right
    """
    padded = np.full((len(texts), length), PAD)
    for row, tokens in zip(padded, texts, strict=True):
        row[: len(tokens)] = tokens
    return th.as_tensor(padded, device=device)


class TokenPolicy(TokenNetworkMixin, ActorPolicy):
    """
    Policy class for text, without a critic (GRPO, DAPO): a causal transformer, small by default.

    :param observation_space: Observation space, a :class:`TokenSpace`
    :param action_space: Action space, the tokens
    :param lr_schedule: Learning rate schedule (could be constant)
    :param n_layers: Number of transformer blocks
    :param width: Size of the hidden states
    :param n_heads: Number of attention heads
    :param context: Longest text in tokens, by default that of the observations
    :param autocast: Compute in bfloat16 on a GPU. Without effect on CPU
    :param compile: Use ``torch.compile`` for the updates on a GPU. Without effect on CPU
    :param kwargs: The other keyword arguments of :class:`ActorPolicy`
    """

    reads_texts = True

    def action_sampler(self) -> Callable[[Any], tuple[np.ndarray, th.Tensor | None]]:
        """
        A function that samples the next tokens of N texts. It reads each token once,
        and must be dropped when the weights change.

        :return: function from observations to actions and their log probabilities
        """
        read = CachedReader(self.read, self.device)

        def sample(observations: np.ndarray) -> tuple[np.ndarray, th.Tensor | None]:
            _check_dtype(str(observations.dtype), observations.dtype.kind == "f")
            tokens, log_probs = self._sample(read(observations))
            return tokens.cpu().numpy(), log_probs

        return sample


class TokenActorCriticPolicy(TokenNetworkMixin, ActorCriticPolicy):
    """
    Policy class for text with a critic (PPO, A2C): :class:`TokenPolicy` with a value head on the same transformer.

    :param args: See :class:`TokenPolicy`
    :param kwargs: See :class:`TokenPolicy`
    """

    _reader: CachedReader | None = None
    _reader_state: Any = None

    def _build_critic(self) -> None:
        """Create the value head."""
        self.value_net = nn.Linear(self.action_net.in_features, 1)  # type: ignore[arg-type]
        # A random critic would spoil a warm start: rare rewards would be lost in the noise of its values
        nn.init.zeros_(self.value_net.weight)
        nn.init.zeros_(self.value_net.bias)

    def forward(self, obs: th.Tensor, deterministic: bool = False) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        """
        Forward pass in all the networks (actor and critic), of the new tokens only.

        :param obs: Observation
        :param deterministic: Whether to sample or use deterministic actions
        :return: action, value and log probability of the action
        """
        hidden = self._hidden(obs) if th.is_grad_enabled() else self._read_new_tokens(obs)
        actions, log_prob = self._sample(hidden, deterministic)
        return actions, self.value_net(hidden), log_prob

    def _read_new_tokens(self, obs: th.Tensor) -> th.Tensor:
        _check_dtype(str(obs.dtype), obs.is_floating_point())
        # What was read before is worthless once the weights have changed: optimizers and load_state_dict count up the version,
        # a move to another place changes the address
        state = (th.is_inference_mode_enabled(), [(each._version, each.data_ptr()) for each in self.parameters()])
        if self._reader is None or self._reader_state != state:
            self._reader, self._reader_state = CachedReader(self.read, self.device), state
        return self._reader(obs.cpu().numpy())

    def load_from_vector(self, vector: np.ndarray) -> None:
        """
        Load parameters from a 1D vector.

        :param vector:
        """
        self._reader = None  # this way of writing weights leaves no trace in them
        super().load_from_vector(vector)

    def evaluate_actions(self, obs: PyTorchObs, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        """
        Evaluate actions according to the current policy, given the observations.

        :param obs: Observation
        :param actions: Actions
        :return: estimated value, log likelihood of taking those actions
            and entropy of the action distribution.
        """
        hidden = self._hidden(obs)  # type: ignore[arg-type]
        distribution = self._get_action_dist_from_latent(hidden)
        return self.value_net(hidden), distribution.log_prob(actions), distribution.entropy()

    def predict_values(self, obs: PyTorchObs) -> th.Tensor:
        """
        Get the estimated values according to the current policy given the observations.

        :param obs: Observation
        :return: the estimated values.
        """
        return self.value_net(self._hidden(obs))  # type: ignore[arg-type]
