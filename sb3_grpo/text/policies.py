"""Policies for text: a causal transformer reads the tokens written so far and chooses the next one."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import nn

from sb3_grpo.common.buffers import Acted
from sb3_grpo.common.policies import ActorPolicy
from sb3_grpo.common.sampling import unchecked_distributions
from sb3_grpo.text.buffer import TokenRolloutBuffer
from sb3_grpo.text.decoding import CachedReader, SlotCache
from sb3_grpo.text.token_distribution import TokenDistribution, choose_tokens
from sb3_grpo.text.tokens import PAD, TokenSpace, check_token_ids, encode_prompt, padded_tokens, token_lengths
from sb3_grpo.text.transformer import CausalTransformer
from sb3_grpo.text.tree import TokenSteps, row_limit
from sb3_grpo.text.warm_start import pretrain
from sb3_grpo.utils.devices import to_device
from sb3_grpo.utils.parameters import Number, Whole

# Parameters of SB3's policies for other kinds of networks
NOT_FOR_TEXT = (
    "net_arch",
    "activation_fn",
    "ortho_init",
    "features_extractor_class",
    "features_extractor_kwargs",
    "normalize_observations",
)


class TokenPolicyMixin(ActorCriticPolicy):
    """What text policies with and without a critic have in common. See :class:`TokenPolicy` for the parameters."""

    observation_space: TokenSpace
    network: nn.Module
    _how_to_shape: ClassVar[str] = "the transformer's size is policy_kwargs=dict(n_layers=..., width=..., n_heads=...)."
    pretrain = pretrain

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
                f"sb3_grpo.text.tokens.TokenSpace, such as sb3_grpo:sb3_grpo/VerifierText-v0, got {observation_space}. "
                'For numbers take "MlpPolicy", for images "CnnPolicy", for dictionaries "MultiInputPolicy".'
            )
        vocab_size = observation_space.tokenizer.vocab_size
        if not (isinstance(action_space, spaces.Discrete) and action_space.n == vocab_size):
            raise ValueError(
                f"{type(self).__name__} chooses tokens: the action space must be Discrete({vocab_size}), got {action_space}."
            )
        length = observation_space.length
        if context is not None and context < length:
            raise ValueError(f"context={context} is shorter than the {length} tokens of an observation.")
        self.network_kwargs: dict[str, Any] = dict(n_layers=n_layers, width=width, n_heads=n_heads, context=context or length)
        self.autocast = autocast
        super().__init__(observation_space, action_space, lr_schedule, **kwargs)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = super()._get_constructor_parameters()
        data = {name: value for name, value in data.items() if name not in NOT_FOR_TEXT}
        return {**data, **self.network_kwargs, "autocast": self.autocast}

    def _make_network(self) -> tuple[nn.Module, Any]:
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

    @property
    def _width(self) -> int:
        return self.network.width  # type: ignore[return-value]

    def _autocast(self) -> th.autocast:
        on_gpu = self.device.type == "cuda"
        return th.autocast(self.device.type, dtype=th.bfloat16, enabled=self.autocast and on_gpu)

    def read(
        self, tokens: th.Tensor, positions: th.Tensor, mask: th.Tensor | None = None, cache: SlotCache | None = None
    ) -> th.Tensor:
        """
        Forward pass of the network, in bfloat16 on a GPU if ``autocast`` is set. See :class:`SequenceModel`.
        """
        with self._autocast():
            hidden = self.network(tokens, positions, mask, cache)
        return hidden.to(th.promote_types(hidden.dtype, th.float32))

    def logits(self, hidden: th.Tensor) -> th.Tensor:
        """
        :param hidden: (n, width) hidden states
        :return: (n, V) logits of the next token; V can be larger than the tokenizer's vocabulary
        """
        with self._autocast():
            return self.action_net(hidden)

    def _hidden(self, obs: th.Tensor | TokenSteps) -> th.Tensor:
        """
        :param obs: (n, L) observations, or (M,) steps of several texts
        :return: (n or M, width) hidden state of the last token
        """
        if not isinstance(obs, TokenSteps):
            check_token_ids(obs)
            last = (obs != PAD).sum(dim=1) - 1
            obs = TokenSteps(obs.long().cpu().numpy(), th.arange(len(obs), device=obs.device), last)
        tree = obs.tree(row_limit(self._width, obs.texts.shape[1]))
        tokens, positions, places = (to_device(each, self.device) for each in (tree.tokens, tree.positions, tree.places))
        hidden = self.read(tokens, positions, tree.mask(self.device))
        return hidden.flatten(0, 1)[places[obs.text, obs.last]]

    def get_distribution(self, obs: PyTorchObs | TokenSteps) -> Distribution:
        """
        Get the current policy distribution given the observations.

        :param obs: (n, L) observations, or (M,) steps of several texts
        :return: the action distribution.
        """
        return self._get_action_dist_from_latent(self._hidden(obs))  # type: ignore[arg-type]

    @property
    def _has_own_distribution(self) -> bool:
        """Whether a subclass overrides ``get_distribution``, e.g. with a mask that depends on the text."""
        return type(self).get_distribution is not TokenPolicyMixin.get_distribution

    def _token_sampler(
        self, deterministic: bool = False
    ) -> tuple[Callable[[np.ndarray], tuple[th.Tensor, th.Tensor]], CachedReader]:
        """
        Create a function that chooses the next tokens of N texts. It reads each token once (unless a subclass overrides
        ``get_distribution``), and must be discarded when the weights change.

        :param deterministic: Whether to choose the most likely token
        :return: Function from observations to tokens and their log probabilities, and the cache that it uses
        """
        reader = CachedReader(self.read, self.device, self._width)
        if self._has_own_distribution and getattr(self, "top_p", 1.0) < 1.0:
            raise ValueError(f"{type(self).__name__}.get_distribution has no top_p: apply it there, and leave it out here.")

        def sample(observations: np.ndarray) -> tuple[th.Tensor, th.Tensor]:
            if self._has_own_distribution:
                distribution = self.get_distribution(to_device(observations, self.device))
            else:
                distribution = self._get_action_dist_from_latent(reader(observations))
            return choose_tokens(distribution, deterministic)

        return sample, reader

    def generate(
        self,
        prompts: list[str],
        max_new_tokens: int | None = None,
        deterministic: bool = True,
        batch_size: int = 512,
    ) -> list[str]:
        """
        Answer prompts. Like ``predict``, this leaves the policy in evaluation mode.

        :param prompts: The prompts as the policy reads them. With ``examples`` or a chat template of the environment:
            ``env.rules.prompts.text(prompt)`` of each
        :param max_new_tokens: Maximum length of an answer in tokens; ``None``: as much as the context has room for after the
            longest prompt of the batch
        :param deterministic: Whether to take the most likely token at each position, or to sample
        :param batch_size: Number of prompts to answer at a time
        :return: The answers
        """
        if isinstance(prompts, str):
            raise ValueError(f"generate() needs a list of prompts, got the text {prompts!r}: write generate([{prompts!r}]).")
        Whole(none="as many as there is room for").check("max_new_tokens", max_new_tokens)
        Whole().check("batch_size", batch_size)
        self.set_training_mode(False)
        room = self.network_kwargs["context"]
        encoded = [encode_prompt(self.observation_space.tokenizer, prompt) for prompt in prompts]
        for prompt, tokens in zip(prompts, encoded, strict=True):
            if not 0 < len(tokens) < room:
                raise ValueError(
                    f"A prompt must have from 1 to {room - 1} tokens, as the context has room for {room} with the answer "
                    f"(policy_kwargs=dict(context=...)), but {prompt!r} has {len(tokens)}."
                )
        answers: list[str] = []
        for begin in range(0, len(encoded), batch_size):
            batch = padded_tokens(encoded[begin : begin + batch_size])
            n_new = min(room - batch.shape[1], max_new_tokens or room)
            texts = self.generate_tokens(batch, n_new, deterministic).numpy()
            # Padding is not a token: a tokenizer may not know it
            written = [text[n:][text[n:] != PAD] for text, n in zip(texts, token_lengths(batch.numpy()), strict=True)]
            answers += [self.observation_space.decode_answer(answer) for answer in written]
        return answers

    @th.inference_mode()
    @unchecked_distributions()
    def generate_tokens(self, prompts: th.Tensor, max_new_tokens: int, deterministic: bool = False) -> th.Tensor:
        """
        Continue texts until each has ended.

        :param prompts: (n, P) token ids padded on the right, at least one token each
        :param max_new_tokens: Maximum number of tokens to generate
        :param deterministic: Whether to take the most likely token at each position, or to sample
        :return: (n, P + max_new_tokens) prompts and answers, padded on the right
        """
        n, prompt_length = prompts.shape
        texts = np.full((n, prompt_length + max_new_tokens), PAD)
        texts[:, :prompt_length] = prompts.cpu()
        begins = token_lengths(texts)
        lengths = begins.copy()
        has_ended = np.zeros(n, bool)
        rows = np.arange(n)  # the texts that are read
        sample, reader = self._token_sampler(deterministic)
        for _ in range(max_new_tokens):
            tokens = sample(texts[rows])[0].cpu().numpy()[~has_ended[rows]]
            going_on = rows[~has_ended[rows]]
            texts[going_on, lengths[going_on]] = tokens
            lengths[going_on] += 1
            has_ended[going_on] = self.observation_space.ends(texts[going_on], begins[going_on], lengths[going_on])
            n_left = np.count_nonzero(~has_ended)
            if n_left == 0:
                break
            # Dropping texts copies the cache of the others
            if 2 * n_left <= len(rows):
                left = np.flatnonzero(~has_ended[rows])
                reader.keep(left)
                rows = rows[left]
        return th.as_tensor(texts, device=prompts.device)


class TokenPolicy(TokenPolicyMixin, ActorPolicy):  # type: ignore[misc]
    """
    Policy class for text without a critic (GRPO, DAPO): a causal transformer, small by default.

    :param observation_space: Observation space, a :class:`TokenSpace`
    :param action_space: Action space, one action per token
    :param lr_schedule: Learning rate schedule (could be constant)
    :param n_layers: Number of transformer blocks
    :param width: Size of the hidden states
    :param n_heads: Number of attention heads
    :param context: Maximum length of a text in tokens, by default the length of the observations
    :param autocast: Whether to compute in bfloat16 on a GPU. No effect on CPU
    :param temperature: Divisor of the logits, when sampling and in updates
    :param top_p: Sample from the most likely tokens whose probabilities add up to this, see :class:`TokenDistribution`
    :param kwargs: Other keyword arguments of :class:`ActorPolicy`, except those for other kinds of networks
    """

    reads_texts = True
    rollout_buffer_class = TokenRolloutBuffer

    @classmethod
    def default_arguments(cls, policy_kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """See :meth:`ActorPolicy.default_arguments`."""
        return {**super().default_arguments(policy_kwargs), "advantage": "return_to_go"}

    def __init__(self, *args: Any, temperature: float = 1.0, top_p: float = 1.0, **kwargs: Any):
        self.temperature = Number(positive=True).check("temperature", temperature)
        self.top_p = Number(0.0, 1.0, positive=True).check("top_p", top_p)
        super().__init__(*args, **kwargs)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "temperature": self.temperature, "top_p": self.top_p}

    def _get_action_dist_from_latent(self, latent_pi: th.Tensor) -> Distribution:
        n_tokens = self.observation_space.tokenizer.vocab_size
        return TokenDistribution(latent_pi, self.logits, n_tokens, self.temperature, self.top_p)

    def action_sampler(self) -> Callable[[Any], Acted]:
        """
        :return: Function from observations to actions and their log probabilities, valid until the weights change
        """
        choose, _ = self._token_sampler()

        def sample(observations: np.ndarray) -> Acted:
            tokens, log_probs = choose(observations)
            return Acted(tokens.cpu().numpy(), log_probs)

        return sample

    def sampled_log_probs(self, dist_inputs: th.Tensor, actions: th.Tensor) -> th.Tensor:
        """
        :param dist_inputs: (N,) log probabilities that the action sampler returned with the tokens
        :param actions: (N,) the tokens
        :return: (N,) their log probabilities
        """
        return dist_inputs


class TokenActorCriticPolicy(TokenPolicyMixin, ActorCriticPolicy):
    """
    Policy class for text with a critic (PPO, A2C): :class:`TokenPolicy` with a value head on the same transformer.

    :param args: See :class:`TokenPolicy`
    :param kwargs: See :class:`TokenPolicy`, without ``temperature`` and ``top_p``
    """

    _reader: CachedReader | None = None
    _reader_state: Any = None

    def _build_critic(self) -> None:
        """Create the value head."""
        self.value_net = nn.Linear(self._width, 1)
        # A random critic would undo a warm start: rare rewards would be lost in the noise of its values
        nn.init.zeros_(self.value_net.weight)
        nn.init.zeros_(self.value_net.bias)

    def forward(self, obs: th.Tensor, deterministic: bool = False) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        """
        Forward pass in all the networks (actor and critic), for the new tokens only.

        :param obs: Observation
        :param deterministic: Whether to sample or use deterministic actions
        :return: action, value and log probability of the action
        """
        hidden = self._hidden(obs) if th.is_grad_enabled() else self._read_new_tokens(obs)
        actions, log_prob = choose_tokens(self._distribution_of(obs, hidden), deterministic)
        return actions, self.value_net(hidden), log_prob

    def _distribution_of(self, obs: Any, hidden: th.Tensor) -> Distribution:
        return self.get_distribution(obs) if self._has_own_distribution else self._get_action_dist_from_latent(hidden)

    def _read_new_tokens(self, obs: th.Tensor) -> th.Tensor:
        # Weights hardly ever change between calls of set_training_mode(), but if they do, the cache is invalid.
        # load_state_dict and in-place changes increment the version, load_from_vector changes the address
        state = (th.is_inference_mode_enabled(), [(each._version, each.data_ptr()) for each in self.parameters()])
        if self._reader is None or self._reader_state != state:
            self._reader, self._reader_state = CachedReader(self.read, self.device, self._width), state
        return self._reader(obs.cpu().numpy())

    def set_training_mode(self, mode: bool) -> None:
        """
        Put the policy in either training or evaluation mode, as SB3 does before each rollout and each update.

        :param mode: if true, set to training mode, else set to evaluation mode
        """
        self._reader = None  # some optimizers, such as fused ones, do not increment the version of the weights
        super().set_training_mode(mode)

    def evaluate_actions(self, obs: PyTorchObs, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        """
        Evaluate actions according to the current policy, given the observations.

        :param obs: Observation
        :param actions: Actions
        :return: estimated value, log likelihood of taking those actions
            and entropy of the action distribution.
        """
        hidden = self._hidden(obs)  # type: ignore[arg-type]
        distribution = self._distribution_of(obs, hidden)
        return self.value_net(hidden), distribution.log_prob(actions), distribution.entropy()

    def predict_values(self, obs: PyTorchObs) -> th.Tensor:
        """
        Get the estimated values according to the current policy given the observations.

        :param obs: Observation
        :return: the estimated values.
        """
        return self.value_net(self._hidden(obs))  # type: ignore[arg-type]
