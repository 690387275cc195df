"""Policy for text that uses a pretrained language model of Hugging Face ``transformers``."""

import copy
import inspect
import os
import warnings
from collections.abc import Mapping
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.type_aliases import Schedule
from torch import nn

from sb3_grpo.text.policies import TokenPolicy
from sb3_grpo.text.transformer import SlotCache

# The implementation of attention. It accepts any mask, as the texts in the cache are at different positions
ATTENTION = "sdpa"
DTYPES = {"float32": th.float32, "bfloat16": th.bfloat16}
INSTALL = 'pip install "sb3-grpo[llm]"'
# How much the policy's logits may differ from the model's, in standard deviations of the logits. For a text that is read as a
# whole, both do the same computation, whatever the dtype.
TOLERANCE = 1e-3
CACHED_TOLERANCE = {th.float32: TOLERANCE, th.bfloat16: 0.1}


_adapter_class: Any = None


def _define_adapter() -> Any:
    """
    :return: The class that adapts our cache to the interface of the caches of ``transformers``
    """
    global _adapter_class
    # Imported here, as it takes seconds and other policies do not need it
    from transformers.cache_utils import Cache

    class SlotCacheAdapter(Cache):
        """
        :param slots: Cache of keys and values; ``None``: nothing is cached, only the current tokens are attended to
        """

        def __init__(self, slots: SlotCache | None):
            # Without layers, the rest of transformers sees an empty cache
            super().__init__(layers=[])
            self.slots = slots

        def update(
            self, key_states: th.Tensor, value_states: th.Tensor, layer_idx: int, *args: Any, **kwargs: Any
        ) -> tuple[th.Tensor, th.Tensor]:
            """See :meth:`SlotCache.update`."""
            if self.slots is None:
                return key_states, value_states
            return self.slots.update(layer_idx, key_states, value_states)

    _adapter_class = SlotCacheAdapter
    return _adapter_class


def _cache_argument(causal_lm: Any) -> str:
    """
    :param causal_lm: A ``PreTrainedModel`` with a head
    :return: What the argument for the cache is called by the model below the head
    """
    # cache is the name since transformers 5.24
    return "cache" if "cache" in inspect.signature(causal_lm.base_model.forward).parameters else "past_key_values"


class CausalLMNetwork(nn.Module):
    """
    A language model as a :class:`SequenceModel`.

    :param language_model: A ``PreTrainedModel``, or a ``PeftModel`` around one
    :param gradient_checkpointing: Whether the model recomputes hidden states in the backward pass
    """

    def __init__(self, language_model: nn.Module, gradient_checkpointing: bool = False):
        super().__init__()
        self.language_model = language_model
        self.gradient_checkpointing = gradient_checkpointing
        self.cache_argument = _cache_argument(self.causal_lm)

    @property
    def causal_lm(self) -> Any:
        """The model, including its adapters but without the wrapper of ``peft``."""
        model: Any = self.language_model
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    def forward(self, tokens: th.Tensor, positions: th.Tensor, cache: SlotCache | None = None) -> th.Tensor:
        """See :class:`SequenceModel`."""
        model = self.causal_lm
        mask = None
        if cache is not None:
            # A mask with four dimensions is used by transformers as it is
            mask = cache.mask
        # An adapter without a cache avoids waiting for the device: without it, transformers compares the positions to find
        # out whether a row has several texts. Gradient checkpointing would remove it with a warning.
        adapter = _adapter_class or _define_adapter()
        bare = cache is None and self.training and self.gradient_checkpointing
        return model.base_model(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=mask,
            use_cache=cache is not None,
            **{self.cache_argument: None if bare else adapter(cache)},
        ).last_hidden_state


class VocabularyHead(nn.Module):
    """
    A language model's last layer, restricted to the tokens that the tokenizer knows: many models have spare rows.

    :param network: The network, which holds the parameters of this layer
    :param vocab_size: Number of tokens
    """

    def __init__(self, network: CausalLMNetwork, vocab_size: int):
        super().__init__()
        # In a list, so that its parameters are not registered, and saved, twice
        self._network = [network]
        self.vocab_size = vocab_size

    def forward(self, hidden: th.Tensor) -> th.Tensor:
        """
        :param hidden: (..., width) hidden states
        :return: (..., vocab_size) logits
        """
        model = self._network[0].causal_lm
        return model.get_output_embeddings()(hidden.to(model.dtype))[..., : self.vocab_size].float()


class CausalLMPolicy(TokenPolicy):
    """
    Policy class for text that uses a pretrained language model, without a critic (GRPO, DAPO)::

        GRPO(CausalLMPolicy, env, policy_kwargs=dict(model="path/to/model", lora=dict(r=16)))

    The environment's tokenizer must be the model's: ``VerifierTextVecEnv(..., tokenizer=AutoTokenizer.from_pretrained(...))``.
    Token ids are passed to the model and back unchanged. Nothing is added to a prompt, neither a BOS token nor a chat
    template.

    Each policy has its own copy of the model. The reference policy (``kl_coef`` > 0) copies only the trained weights and
    shares the frozen ones. The model's own dropout is turned off, as updates must see the probabilities that were sampled
    from; LoRA's dropout is used as configured, in updates only.

    Only trained weights are saved: with LoRA the adapters, otherwise all weights. When a saved policy is loaded, the frozen
    weights come from ``model``, so if it is a folder, it must still exist. A model given as an object is saved as a whole, as
    part of ``policy_kwargs``. ``policy.language_model.save_pretrained(folder)`` saves it in the format of ``transformers``
    (``peft``).

    :param observation_space: Observation space, a :class:`TokenSpace`
    :param action_space: Action space, one action per token
    :param lr_schedule: Learning rate schedule (could be constant)
    :param model: A folder or the name of a model on the hub, passed to ``AutoModelForCausalLM.from_pretrained``; or a model
        (``transformers.PreTrainedModel``), which is copied
    :param lora: Train only adapters, given by the arguments of ``peft.LoraConfig`` or a ``LoraConfig``. ``None``: train all
        weights (for a model given as an object, those with ``requires_grad``)
    :param dtype: Data type of the weights, ``"float32"`` or ``"bfloat16"``. Small updates are lost in bfloat16 weights: it is
        meant for frozen weights, while the adapters are in float32. To train all weights and compute in bfloat16, use
        ``autocast``.
    :param gradient_checkpointing: Whether to recompute hidden states in the backward pass instead of storing them: slower,
        but needs less memory
    :param context: Maximum length of a text in tokens, by default the length of the observations
    :param autocast: Whether to compute in bfloat16 on a GPU. No effect on CPU
    :param kwargs: Other keyword arguments of :class:`TokenPolicy`, except those for the size of its network
    """

    _how_to_shape = "the network is that of the model, remove it from policy_kwargs."

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        lr_schedule: Schedule,
        *,
        model: Any = None,
        lora: Any = None,
        dtype: str = "float32",
        gradient_checkpointing: bool = False,
        **kwargs: Any,
    ):
        for name in ("n_layers", "width", "n_heads"):
            if name in kwargs:
                raise ValueError(
                    f"{type(self).__name__} has no {name}, which is that of the model: remove it from policy_kwargs, "
                    "or use TokenPolicy for a new network of that size."
                )
        if dtype not in DTYPES:
            raise ValueError(f"CausalLMPolicy: unknown dtype={dtype!r}, must be one of {', '.join(DTYPES)}.")
        if isinstance(model, os.PathLike):
            model = os.fspath(model)
        # Not registered as a submodule: this model belongs to the user
        self.model_kwargs: dict[str, Any] = dict(
            model=model,
            lora=lora,
            dtype=dtype,
            gradient_checkpointing=gradient_checkpointing,
        )
        super().__init__(observation_space, action_space, lr_schedule, **kwargs)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = {**super()._get_constructor_parameters(), **self.model_kwargs}
        return {name: value for name, value in data.items() if name not in ("n_layers", "width", "n_heads")}

    @property
    def language_model(self) -> Any:
        """The ``PreTrainedModel``, or the ``PeftModel`` around it if LoRA is used."""
        return self.network.language_model

    def _make_network(self) -> tuple[nn.Module, nn.Module]:
        """
        :return: The network and its last layer
        """
        model = self._make_model()
        self._check_model(model)
        _turn_off_dropout(model)
        vocab_size = self.observation_space.tokenizer.vocab_size
        network = CausalLMNetwork(model, self.model_kwargs["gradient_checkpointing"])
        head = VocabularyHead(network, vocab_size)
        _check_agreement(network, head, min(self.network_kwargs["context"], 7))
        if self.model_kwargs["lora"] is not None:
            network.language_model = _with_lora(model, self.model_kwargs["lora"])
        if self.model_kwargs["gradient_checkpointing"]:
            # activation_checkpointing_enable is the new name in transformers 6
            enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            enable({"use_reentrant": False})
        return network, head

    def _make_model(self) -> Any:
        """
        :return: The policy's own ``PreTrainedModel``
        """
        try:
            from transformers import AutoModelForCausalLM, PreTrainedModel
        except ImportError as error:
            raise ImportError(f"CausalLMPolicy needs the package transformers: {INSTALL}") from error
        model, dtype = self.model_kwargs["model"], DTYPES[self.model_kwargs["dtype"]]
        if isinstance(model, str):
            return AutoModelForCausalLM.from_pretrained(model, dtype=dtype, attn_implementation=ATTENTION)
        if not isinstance(model, PreTrainedModel):
            raise ValueError(
                "CausalLMPolicy needs policy_kwargs=dict(model=...): a folder, the name of a model on the hub, or a "
                "transformers.PreTrainedModel (for adapters give the model without them, and lora=...), "
                f"got {'nothing' if model is None else type(model).__name__}."
            )
        copied: Any = copy.deepcopy(model)
        copied.to(dtype=dtype)
        copied.set_attn_implementation(ATTENTION)
        return copied

    def _check_model(self, model: Any) -> None:
        """
        :param model: A ``PreTrainedModel``
        :raises ValueError: if it cannot read texts of this length, or token by token, if it does not know all tokens or ends
            texts with a different one, or if all its weights are frozen
        """
        name, config, context = type(model).__name__, model.config.get_text_config(), self.network_kwargs["context"]
        if self.model_kwargs["lora"] is None and not any(parameter.requires_grad for parameter in model.parameters()):
            raise ValueError(f"All weights of the {name} are frozen: call model.requires_grad_(True), or use lora=dict(...).")
        output = model.get_output_embeddings()
        taken = {} if model.base_model is model else inspect.signature(model.base_model.forward).parameters
        missing = {"input_ids", "position_ids", "attention_mask", _cache_argument(model)} - {*taken}
        if output is None or missing:
            raise ValueError(
                f"CausalLMPolicy cannot use {name}: it needs a model with a language modelling head, such as "
                "transformers.AutoModelForCausalLM gives, around one whose forward() takes input_ids, position_ids, "
                "attention_mask and cache (past_key_values before transformers 5.24)."
            )
        vocab_size = self.observation_space.tokenizer.vocab_size
        n_rows = min(output.weight.shape[0], model.get_input_embeddings().weight.shape[0])
        if n_rows < vocab_size:
            raise ValueError(
                f"The tokenizer has {vocab_size} tokens, but {name} knows only {n_rows}: use the model's own tokenizer, "
                f"or model.resize_token_embeddings({vocab_size})."
            )
        self._check_end(model)
        longest = getattr(config, "max_position_embeddings", None)
        if longest is not None and longest < context:
            raise ValueError(
                f"{name} reads texts of at most {longest} tokens (max_position_embeddings), but the context is {context}: "
                "use shorter observations (and context), or another model."
            )
        from transformers.cache_utils import DynamicCache, DynamicLayer

        for layer in DynamicCache(config=config).layers:
            if not isinstance(layer, DynamicLayer):
                raise ValueError(
                    f"CausalLMPolicy cannot use {name}: it has layers that are not attention to keys and values "
                    f"({type(layer).__name__}). Use a model that has not."
                )
            # A window at least as long as the context hides nothing
            window = getattr(layer, "sliding_window", context)
            if window < context:
                raise ValueError(
                    f"{name} attends to no more than the last {window} tokens in some layers, but the context "
                    f"is {context}: use shorter observations (and context), or another model."
                )

    def _check_end(self, model: Any) -> None:
        """
        :param model: A ``PreTrainedModel``
        :raises ValueError: if it ends texts with a different token than the environment's tokenizer
        """
        ends: set[int] = set()
        for config in (model.config, model.config.get_text_config(), getattr(model, "generation_config", None)):
            found = getattr(config, "eos_token_id", None)
            ends |= set() if found is None else {found} if isinstance(found, int) else {*found}
        tokenizer = self.observation_space.tokenizer
        if ends and tokenizer.eos_id not in ends:
            raise ValueError(
                f"The environment's tokenizer ({type(tokenizer).__name__}) ends texts with token {tokenizer.eos_id}, but "
                f"{type(model).__name__} with {' or '.join(map(str, sorted(ends)))} (eos_token_id): to the model, its ids "
                "mean something else. Give the environment the model's own tokenizer, e.g. "
                "VerifierTextVecEnv(..., tokenizer=AutoTokenizer.from_pretrained(...)). If the model was made for this "
                f"tokenizer, set eos_token_id={tokenizer.eos_id} in its config."
            )

    def _build(self, lr_schedule: Schedule) -> None:
        """
        Create the network and the optimizer.

        :param lr_schedule: Learning rate schedule
            lr_schedule(1) is the initial learning rate
        """
        super()._build(lr_schedule)
        named = self.named_parameters(remove_duplicate=False)
        self._frozen = frozenset(name for name, parameter in named if not parameter.requires_grad)

    def frozen_parts(self) -> list[Any]:
        """
        :return: The parts that the reference policy can share with this one: all frozen weights, and the objects that the
            policy was built from
        """
        frozen = [parameter for parameter in self.parameters() if not parameter.requires_grad]
        return [*frozen, self.model_kwargs["model"], self.observation_space]

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """See :meth:`torch.nn.Module.state_dict`. Excludes frozen weights, which each policy gets from ``model``."""
        state = super().state_dict(*args, **kwargs)
        for name in self._frozen:
            state.pop(name, None)
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """See :meth:`torch.nn.Module.load_state_dict`. Missing frozen weights stay as they are."""
        mine = dict(self.named_parameters(remove_duplicate=False))
        return super().load_state_dict({**{name: mine[name] for name in self._frozen}, **state_dict}, strict, assign)


def _with_lora(model: Any, lora: Any) -> nn.Module:
    """
    :param model: A ``PreTrainedModel``, whose layers are replaced
    :param lora: A ``LoraConfig`` or its arguments
    :return: The ``PeftModel``
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ImportError(f"CausalLMPolicy(lora=...) needs the package peft: {INSTALL}") from error
    if isinstance(lora, Mapping):
        lora = LoraConfig(**{"task_type": "CAUSAL_LM", **lora})
    if not isinstance(lora, LoraConfig):
        raise ValueError(f"lora must be a dict of arguments of peft.LoraConfig, a LoraConfig or None, got {lora!r}.")
    with warnings.catch_warnings():
        # peft uses a name from early versions of transformers 5
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        # peft modifies the configuration
        return get_peft_model(model, copy.deepcopy(lora))


def _turn_off_dropout(model: nn.Module) -> None:
    """
    :param model: A ``PreTrainedModel``. Its submodules get copies of its configuration, which some of them read at each step;
        the model itself keeps the original, which is saved with it
    """
    quiet: dict[int, Any] = {}
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        # For modules that pass it as an argument to a function
        _set_noise_to_zero(module)
        config = getattr(module, "config", None)
        if config is not None and module is not model:
            if id(config) not in quiet:
                quiet[id(config)] = copy.deepcopy(config)
                _set_noise_to_zero(quiet[id(config)])
            module.config = quiet[id(config)]


def _set_noise_to_zero(thing: Any) -> None:
    """
    :param thing: A submodule or a configuration, whose dropout probabilities (of units or layers) and jitter in the choice of
        experts are set to 0
    """
    for name, value in vars(thing).items():
        if isinstance(value, float) and ("drop" in name or "jitter" in name):
            setattr(thing, name, 0.0)


@th.no_grad()
def _check_agreement(network: CausalLMNetwork, head: VocabularyHead, n_tokens: int) -> None:
    """
    Check that the policy computes the same logits as the model. Among hundreds of architectures, some process logits after
    their last layer, or treat positions and masks differently; the policy would then train something else than the model.

    :param network: The network
    :param head: Its last layer
    :param n_tokens: Length of the text to try
    :raises ValueError: if the logits differ from those of the model, with or without the cache
    """
    model = network.causal_lm
    network.eval()
    tokens = (th.arange(n_tokens, device=model.device) % head.vocab_size).expand(2, -1)
    everywhere = th.arange(n_tokens, device=model.device).expand(2, -1)
    # Two texts, the second one token behind; in the last part it catches up, while the first reads its end again
    behind = th.stack([everywhere[0], (everywhere[1] - 1).clamp(min=0)])
    parts = [*behind.split(3, dim=1), (behind[:, -3:] + 1).clamp(max=n_tokens - 1)]
    expected = model(input_ids=tokens).logits[..., : head.vocab_size].float()
    cache = SlotCache(2, n_tokens)
    try:
        uncached = head(network(tokens, everywhere))
        cached = []
        for places in parts:
            cache.begin(None, places, int(places.max()) + 1)
            cached.append(head(network(tokens.gather(1, places), places, cache)))
    except Exception as error:
        raise ValueError(
            f"CausalLMPolicy cannot use {type(model).__name__}: reading token by token with a cache failed ({error})."
        ) from error
    again = expected.take_along_dim(th.cat(parts, dim=1)[..., None], dim=1)
    for name, logits, wanted, tolerance in (
        ("as a whole", uncached, expected, TOLERANCE),
        ("token by token", th.cat(cached, dim=1), again, CACHED_TOLERANCE[model.dtype]),
    ):
        difference = (logits - wanted).abs().mean() / expected.std()
        if not difference <= tolerance:
            raise ValueError(
                f"CausalLMPolicy cannot use {type(model).__name__}: its logits for a text read {name} are not those of the "
                f"model itself (on average {difference:.2g} standard deviations away). It does something that is known "
                "neither to the last layer nor to the key/value cache, such as scaling logits or attending in another way. "
                "Use another model."
            )
