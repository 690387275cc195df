"""The network of text policies: a causal transformer reads the tokens written so far, and the next token is sampled."""

from typing import Any, ClassVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import nn

from sb3_grpo.text.tokens import PAD, TokenSpace, TokenSteps
from sb3_grpo.text.transformer import CausalTransformer, SlotCache

# Parameters of SB3's policies for other kinds of networks
NOT_FOR_TEXT = (
    "net_arch",
    "activation_fn",
    "ortho_init",
    "features_extractor_class",
    "features_extractor_kwargs",
    "normalize_observations",
)


class TokenNetworkMixin(ActorCriticPolicy):
    """
    Base class of text policies, with or without a critic. See :class:`sb3_grpo.text.policies.TokenPolicy`
    for the parameters.
    """

    observation_space: TokenSpace
    network: nn.Module
    _how_to_shape: ClassVar[str] = "the transformer's size is policy_kwargs=dict(n_layers=..., width=..., n_heads=...)."

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        lr_schedule: Schedule,
        *,
        n_layers: int = 2,
        width: int = 64,
        n_heads: int = 4,
        context: int | None = None,
        autocast: bool = False,
        **kwargs: Any,
    ):
        for name in NOT_FOR_TEXT:
            if name in kwargs:
                raise ValueError(f"{type(self).__name__} has no {name}: {self._how_to_shape}")
        if not isinstance(observation_space, TokenSpace):
            raise ValueError(
                f"{type(self).__name__} reads token ids: it needs an environment whose observation space is a "
                f"sb3_grpo.text.tokens.TokenSpace, such as sb3_grpo.envs:VerifierText-v0, got {observation_space}. "
                'For numbers take "MlpPolicy", for images "CnnPolicy", for dictionaries "MultiInputPolicy".'
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
        super().__init__(observation_space, action_space, lr_schedule, **kwargs)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = super()._get_constructor_parameters()
        for name in NOT_FOR_TEXT:
            data.pop(name, None)
        data.update(self.network_kwargs, autocast=self.autocast)
        return data

    def _make_network(self) -> tuple[nn.Module, nn.Module]:
        """
        :return: A :class:`SequenceModel`, and the layer that maps its hidden states to logits
        """
        vocab_size = self.observation_space.tokenizer.vocab_size
        network = CausalTransformer(vocab_size, **self.network_kwargs)
        head = nn.Linear(network.width, vocab_size)
        # As in SB3's policies: initially, all actions have nearly the same probability
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
        """Create the critic: there is none by default."""

    def read(self, tokens: th.Tensor, positions: th.Tensor, cache: SlotCache | None = None) -> th.Tensor:
        """
        Forward pass of the network, in bfloat16 on a GPU if ``autocast`` is set. See :class:`SequenceModel`.
        """
        on_gpu = tokens.device.type == "cuda"
        with th.autocast(tokens.device.type, dtype=th.bfloat16, enabled=self.autocast and on_gpu):
            return self.network(tokens, positions, cache).float()

    def __getstate__(self) -> dict[str, Any]:
        # Recreated when needed
        return {key: value for key, value in vars(self).items() if key != "_reader"}

    def _hidden(self, obs: th.Tensor | TokenSteps) -> th.Tensor:
        """
        :param obs: (n, L) observations, or (M,) steps of several texts
        :return: (n or M, width) hidden state of the last token
        """
        if isinstance(obs, TokenSteps):
            texts, text, last = obs.texts, obs.text, obs.last
        else:
            check_dtype(str(obs.dtype), obs.is_floating_point())
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
        :param hidden: (n, width) hidden states
        :param deterministic: Whether to choose the most likely token
        :return: (n,) tokens, and (n,) their log probabilities
        """
        log_probs = self._get_action_dist_from_latent(hidden).distribution.logits  # type: ignore[union-attr]
        if deterministic:
            tokens = log_probs.argmax(dim=-1)
        else:
            tokens = (log_probs - th.empty_like(log_probs).exponential_().log_()).argmax(dim=-1)
        return tokens, log_probs.gather(1, tokens[:, None]).squeeze(1)

    @property
    def _has_own_distribution(self) -> bool:
        """Whether a subclass overrides ``get_distribution``, e.g. with a mask that depends on the text."""
        return type(self).get_distribution is not TokenNetworkMixin.get_distribution

    def _sample_uncached(self, obs: th.Tensor, deterministic: bool = False) -> tuple[th.Tensor, th.Tensor]:
        """
        Sample from the distribution of a subclass that overrides ``get_distribution``.

        :param obs: (n, L) observations
        :param deterministic: Whether to choose the most likely token
        :return: (n,) tokens, and (n,) their log probabilities
        """
        distribution = self.get_distribution(obs)
        tokens = distribution.get_actions(deterministic)
        return tokens, distribution.log_prob(tokens)

    def _encode(self, text: str, end: bool = False) -> list[int]:
        """
        :param text: A text
        :param end: Whether to append the end-of-text token
        :return: Its token ids
        """
        if not isinstance(text, str):
            raise ValueError(f"Prompts and answers are texts, got {text!r:.200} of type {type(text).__name__}.")
        tokenizer = self.observation_space.tokenizer
        tokens = [*tokenizer.encode(text), *([tokenizer.eos_id] if end else [])]
        if not 0 < len(tokens) <= self.network_kwargs["context"]:
            raise ValueError(
                f"A text must have from 1 to {self.network_kwargs['context']} tokens (policy_kwargs=dict(context=...)), "
                f"but {text!r} has {len(tokens)}."
            )
        return tokens


def check_dtype(dtype: str, is_floating: bool) -> None:
    if is_floating:
        raise ValueError(
            f"Token ids must be whole numbers, but these observations are {dtype}: has a VecNormalize scaled them? "
            "Use VecNormalize(env, norm_obs=False)."
        )


def padded_tokens(texts: list[list[int]], length: int, device: th.device) -> th.Tensor:
    """
    :param texts: Token ids of each text
    :param length: Length of the longest text
    :param device: PyTorch device
    :return: (n, length) token ids padded on the right
    """
    padded = np.full((len(texts), length), PAD)
    for row, tokens in zip(padded, texts, strict=True):
        row[: len(tokens)] = tokens
    return th.as_tensor(padded, device=device)
