"""Policy for text that uses a pretrained language model of Hugging Face ``transformers``."""

import copy
import functools
import inspect
import os
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.type_aliases import Schedule
from torch import nn

from sb3_grpo.text.decoding import CachedReader, SlotCache
from sb3_grpo.text.policies import TokenPolicy
from sb3_grpo.text.pretrained import INSTALL, absolute_if_folder, end_tokens, find_model, forget_quantization
from sb3_grpo.text.tokens import PAD
from sb3_grpo.text.tree import token_tree
from sb3_grpo.utils.parameters import Choice
from sb3_grpo.utils.user_warnings import warn_user

# The implementation of attention. It accepts any mask, as the texts in the cache are at different positions
ATTENTION = "sdpa"
DTYPES = {"float32": th.float32, "bfloat16": th.bfloat16}
# How much the policy's logits may differ from the model's, in standard deviations of the logits. For a text that is read as a
# whole, both do the same computation, whatever the dtype.
TOLERANCE = 1e-3
CACHED_TOLERANCE = {th.float32: TOLERANCE, th.bfloat16: 0.1}


@functools.cache
def adapter_class() -> Any:
    """
    :return: The class that adapts our cache to the interface of the caches of ``transformers``
    """
    # Imported here, as it takes seconds and other policies do not need it
    from transformers.cache_utils import Cache

    class SlotCacheAdapter(Cache):
        """
        :param slots: Cache of keys and values
        """

        def __init__(self, slots: SlotCache):
            # Without layers, the rest of transformers sees an empty cache
            super().__init__(layers=[])
            self.slots = slots

        def update(
            self, key_states: th.Tensor, value_states: th.Tensor, layer_idx: int, *args: Any, **kwargs: Any
        ) -> tuple[th.Tensor, th.Tensor]:
            """See :meth:`SlotCache.update`."""
            return self.slots.update(layer_idx, key_states, value_states)

    return SlotCacheAdapter


class CausalLMNetwork(nn.Module):
    """
    A language model as a :class:`SequenceModel`.

    :param language_model: A ``PreTrainedModel``, or a ``PeftModel`` around one
    :param vocab_size: Number of tokens that the tokenizer knows: many models have spare rows
    """

    def __init__(self, language_model: nn.Module, vocab_size: int):
        super().__init__()
        self.language_model = language_model
        self.vocab_size = vocab_size
        model = self.causal_lm
        self.width = model.config.get_text_config().hidden_size
        taken = {} if model.base_model is model else inspect.signature(model.base_model.forward).parameters
        # cache is the name since transformers 5.24
        self.cache_argument = "cache" if "cache" in taken else "past_key_values"
        needed = {"input_ids", "position_ids", "attention_mask", self.cache_argument}
        if model.get_output_embeddings() is None or not needed <= {*taken}:
            raise ValueError(
                f"CausalLMPolicy cannot use {type(model).__name__}: it needs a model with a language modelling head, such as "
                "transformers.AutoModelForCausalLM gives, around one whose forward() takes input_ids, position_ids, "
                "attention_mask and cache (past_key_values before transformers 5.24)."
            )

    @property
    def causal_lm(self) -> Any:
        """The model, including its adapters but without the wrapper of ``peft``."""
        model: Any = self.language_model
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    def forward(
        self, tokens: th.Tensor, positions: th.Tensor, mask: th.Tensor | None = None, cache: SlotCache | None = None
    ) -> th.Tensor:
        """See :class:`SequenceModel`."""
        return self.causal_lm.base_model(
            input_ids=tokens,
            position_ids=positions,
            # A mask with four dimensions is used by transformers as it is
            attention_mask=mask,
            use_cache=cache is not None,
            **{self.cache_argument: None if cache is None else adapter_class()(cache)},
        ).last_hidden_state

    def logits(self, hidden: th.Tensor) -> th.Tensor:
        """
        :param hidden: (..., width) hidden states
        :return: (..., V) logits, with those of the model's spare rows
        """
        model = self.causal_lm
        return model.get_output_embeddings()(hidden.to(model.dtype))


class CausalLMPolicy(TokenPolicy):
    """
    Policy class for text that uses a pretrained language model, without a critic (GRPO, DAPO)::

        GRPO("CausalLMPolicy", env, policy_kwargs=dict(model="path/to/model", lora=dict(r=16)))

    The environment's tokenizer must be the model's: ``VerifierTextVecEnv(..., tokenizer="path/to/model")``.
    Token ids are passed to the model and back unchanged. All end tokens of the model must end answers in the environment, as
    its tokenizer's end token or with ``stop=[...]``.

    Defaults of GRPO and DAPO for this policy: a learning rate of 1e-5, or 2e-4 with LoRA, one epoch, no discount, and
    ``advantage="outcome"``.

    Each policy has its own copy of the model. The reference policy (``kl_coef`` > 0) copies only the trained weights and
    shares the frozen ones. The model's own dropout is turned off (in its configuration, too), as updates must see the
    probabilities that were sampled from; LoRA's dropout is used as configured, in updates only.

    Only trained weights are saved: with LoRA the adapters, otherwise all weights. When a saved policy is loaded, the frozen
    weights come from ``model``, so if it is a folder, it must still exist. A model given as an object is saved as a whole, as
    part of ``policy_kwargs``. ``policy.language_model.save_pretrained(folder)`` saves it in the format of ``transformers``
    (``peft``).

    :param observation_space: Observation space, a :class:`TokenSpace`
    :param action_space: Action space, one action per token
    :param lr_schedule: Learning rate schedule (could be constant)
    :param model: A folder, the name of a model on the hub, or ``"smollm2"``, see :func:`sb3_grpo.text.pretrained.find_model`;
        or a model (``transformers.PreTrainedModel``), which is copied
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

    _how_to_shape = "the network is that of the model: remove it from policy_kwargs, or use TokenPolicy for a new network."

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
                raise ValueError(f"{type(self).__name__} has no {name}: {self._how_to_shape}")
        Choice(tuple(DTYPES)).check("dtype", dtype)
        # Not registered as a submodule: this model belongs to the user
        self.model_kwargs: dict[str, Any] = self.portable_kwargs(
            dict(model=model, lora=lora, dtype=dtype, gradient_checkpointing=gradient_checkpointing)
        )
        super().__init__(observation_space, action_space, lr_schedule, **kwargs)
        named = self.named_parameters(remove_duplicate=False)
        self._frozen = frozenset(name for name, parameter in named if not parameter.requires_grad)

    @classmethod
    def default_arguments(cls, policy_kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """See :meth:`ActorPolicy.default_arguments`."""
        learning_rate = 1e-5 if policy_kwargs.get("lora") is None else 2e-4
        return {"learning_rate": learning_rate, "n_epochs": 1, "gamma": 1.0, "advantage": "outcome"}

    @classmethod
    def portable_kwargs(cls, policy_kwargs: dict[str, Any]) -> dict[str, Any]:
        """See :meth:`ActorPolicy.portable_kwargs`. The folder of the model becomes absolute."""
        model = policy_kwargs.get("model")
        return policy_kwargs | ({"model": absolute_if_folder(model)} if isinstance(model, str | os.PathLike) else {})

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = {**super()._get_constructor_parameters(), **self.model_kwargs}
        return {name: value for name, value in data.items() if name not in ("n_layers", "width", "n_heads")}

    @property
    def language_model(self) -> Any:
        """The ``PreTrainedModel``, or the ``PeftModel`` around it if LoRA is used."""
        return self.network.language_model

    def _make_network(self) -> tuple[nn.Module, Any]:
        """
        :return: The network, and the function that maps its hidden states to logits
        """
        model, lora = self._make_model(), self.model_kwargs["lora"]
        if lora is None and not any(parameter.requires_grad for parameter in model.parameters()):
            name = type(model).__name__
            raise ValueError(f"All weights of the {name} are frozen: call model.requires_grad_(True), or use lora=dict(...).")
        network = CausalLMNetwork(model, self.observation_space.tokenizer.vocab_size)
        self._check_model(model)
        _turn_off_dropout(model)
        _check_agreement(network, min(self.network_kwargs["context"], 8))
        if lora is not None:
            network.language_model = _with_lora(model, lora)
        if self.model_kwargs["gradient_checkpointing"]:
            # activation_checkpointing_enable is the new name in transformers 6
            enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            enable({"use_reentrant": False})
        return network, network.logits

    def _make_model(self) -> Any:
        """
        :return: The policy's own ``PreTrainedModel``
        """
        try:
            from transformers import AutoModelForCausalLM, PreTrainedModel
        except ImportError as error:
            raise ImportError(f"CausalLMPolicy needs the package transformers: {INSTALL}") from error
        model, dtype = self.model_kwargs["model"], DTYPES[self.model_kwargs["dtype"]]
        if isinstance(model, str | os.PathLike):
            if os.path.isfile(os.path.join(model, "adapter_config.json")):
                raise ValueError(
                    f"model={os.fspath(model)!r} is the folder of an adapter. Merge it into its model: write "
                    f"model=peft.AutoPeftModelForCausalLM.from_pretrained({os.fspath(model)!r}).merge_and_unload()."
                )
            return AutoModelForCausalLM.from_pretrained(find_model(model), dtype=dtype, attn_implementation=ATTENTION)
        if not isinstance(model, PreTrainedModel):
            raise ValueError(
                "CausalLMPolicy needs policy_kwargs=dict(model=...): a folder, the name of a model on the hub, or a "
                "transformers.PreTrainedModel (for adapters give the model without them, and lora=...), "
                f"got {'nothing' if model is None else type(model).__name__}."
            )
        copied: Any = copy.deepcopy(model)
        forget_quantization(copied)
        copied.to(dtype=dtype)
        copied.set_attn_implementation(ATTENTION)
        return copied

    def _check_model(self, model: Any) -> None:
        """
        :param model: A ``PreTrainedModel``
        :raises ValueError: if it does not know all tokens, ends texts with another one, or cannot read texts of this length
        """
        name, config, context = type(model).__name__, model.config.get_text_config(), self.network_kwargs["context"]
        tokenizer = self.observation_space.tokenizer
        n_rows = min(model.get_output_embeddings().weight.shape[0], model.get_input_embeddings().weight.shape[0])
        if n_rows < tokenizer.vocab_size:
            raise ValueError(
                f"The tokenizer has {tokenizer.vocab_size} tokens, but {name} knows only {n_rows}: use the model's own "
                f"tokenizer, or model.resize_token_embeddings({tokenizer.vocab_size})."
            )
        self._check_ends(model)
        longest = getattr(config, "max_position_embeddings", None) or context
        if longest < context:
            raise ValueError(
                f"{name} reads texts of at most {longest} tokens (max_position_embeddings), but the context is {context}: "
                "use shorter observations (and context), or another model."
            )
        from transformers.cache_utils import DynamicCache

        # A window at least as long as the context hides nothing
        layers = DynamicCache(config=config).layers
        window = min((getattr(layer, "sliding_window", context) for layer in layers), default=context)
        if window < context:
            raise ValueError(
                f"{name} attends to no more than the last {window} tokens in some layers, but the context is {context}: "
                "use shorter observations (and context), or another model."
            )

    def _check_ends(self, model: Any) -> None:
        """
        :param model: A ``PreTrainedModel``
        :raises ValueError: if a token that ends texts of the model does not end answers in the environment
        """
        name, tokenizer = type(model).__name__, self.observation_space.tokenizer
        stop = self.observation_space.stop
        ends = end_tokens(model.generation_config, model.config.get_text_config())
        # The policy writes none of the tokens that the tokenizer does not know
        others = {end: tokenizer.decode([end]) for end in ends if 0 <= end < tokenizer.vocab_size and end != tokenizer.eos_id}
        missed = {end: text for end, text in others.items() if not any(each in text for each in stop)}
        if ends and tokenizer.eos_id not in ends and len(missed) == len(others):
            given = self.model_kwargs["model"]
            own = given if isinstance(given, str) else "path/to/model"
            # The tokenizer of this model, or one that has nothing to do with it
            may_fit = 2 * tokenizer.vocab_size > model.get_input_embeddings().weight.shape[0]
            otherwise = (
                f" If the model was made for this tokenizer, set eos_token_id={tokenizer.eos_id} in its generation_config and "
                f"config, or write VerifierTextVecEnv(..., stop={[*stop, *missed.values()]}) if answers end there, too."
            )
            raise ValueError(
                f"The environment's tokenizer ({type(tokenizer).__name__}) ends texts with token {tokenizer.eos_id}, but "
                f"{name} with {' or '.join(map(str, ends))} (eos_token_id): to the model, its ids mean something else. Give "
                f"the environment the model's own tokenizer: VerifierTextVecEnv(..., tokenizer={own!r}).{otherwise * may_fit}"
            )
        if missed:
            tokens = " and ".join(f"token {end} ({text!r})" for end, text in missed.items())
            raise ValueError(
                f"{name} also ends texts with {tokens} (eos_token_id in its config and generation_config), after which an "
                f"answer would go on in the environment: write VerifierTextVecEnv(..., stop={[*stop, *missed.values()]})."
            )

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
        return {name: value for name, value in state.items() if name not in self._frozen}

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
    sums = [(each, each.detach().sum(dtype=th.float64)) for each in model.parameters()]
    with warnings.catch_warnings():
        # peft uses a name from early versions of transformers 5
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        # peft modifies the configuration
        adapted = get_peft_model(model, copy.deepcopy(lora))
    if any(each.detach().sum(dtype=th.float64) != before for each, before in sums):
        warn_user(
            f"init_lora_weights={lora.init_lora_weights!r} changes the frozen weights of the {type(model).__name__}, and only "
            "the adapter is saved: on the model's own weights it may be another policy. Take another initialisation, such as "
            "True, or save copy.deepcopy(policy.language_model).merge_and_unload()."
        )
    return adapted


def _turn_off_dropout(model: nn.Module) -> None:
    """
    Set all probabilities of dropout (of units or layers) and the jitter in the choice of experts to 0, in the modules and in
    the configuration, which some of them read in each forward pass.

    :param model: A ``PreTrainedModel``
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for thing in (module, getattr(module, "config", module)):
            for name, value in vars(thing).items():
                if isinstance(value, float) and ("drop" in name or "jitter" in name):
                    setattr(thing, name, 0.0)


@th.no_grad()
def _check_agreement(network: CausalLMNetwork, n_tokens: int) -> None:
    """
    Check that the policy computes the same logits as the model. Among hundreds of architectures, some process logits after
    their last layer, or treat positions and masks differently; the policy would then train something else than the model.

    :param network: The network
    :param n_tokens: Length of the text to try
    :raises ValueError: if the logits differ from those of the model, with or without the cache
    """
    model, vocab_size = network.causal_lm, network.vocab_size
    network.eval()
    places = np.arange(n_tokens)
    tokens, positions = (th.as_tensor(each[None], device=model.device) for each in (places % vocab_size, places))
    # Two texts grow next to each other, the second one far behind. In the end it catches up
    last = np.minimum([(4, 0), (5, 1), (6, 2), (7, 3), (7, 7)], n_tokens - 1)
    texts = [np.where(places <= each[:, None], places % vocab_size, PAD) for each in last]
    reader = CachedReader(network, model.device, network.width)
    # In a tree, the text stands behind another end of its first half
    other = np.where(places == n_tokens // 2, 0, places % vocab_size)
    tree = token_tree(np.array([places % vocab_size, other]), 2 * n_tokens)
    branches, depths, of_text = (
        th.as_tensor(each, device=model.device) for each in (tree.tokens, tree.positions, tree.places[0])
    )
    try:
        expected = model(input_ids=tokens).logits[0, :, :vocab_size].float()
        as_a_whole = network.logits(network(tokens, positions))[0, :, :vocab_size].float()
        in_a_tree = network(branches, depths, tree.mask(model.device))[0, of_text]
        in_a_tree = network.logits(in_a_tree)[:, :vocab_size].float()
        token_by_token = th.cat([network.logits(reader(each)) for each in texts])[:, :vocab_size].float()
    except Exception as error:
        raise ValueError(
            f"CausalLMPolicy cannot use {type(model).__name__}: reading token by token with a cache failed ({error}). Use a "
            "model whose layers are nothing but attention to keys and values."
        ) from error
    for name, logits, wanted, tolerance in (
        ("as a whole", as_a_whole, expected, TOLERANCE),
        ("token by token", token_by_token, expected[last.ravel()], CACHED_TOLERANCE[model.dtype]),
        ("next to others that begin alike", in_a_tree, expected, CACHED_TOLERANCE[model.dtype]),
    ):
        difference = (logits - wanted).abs().mean() / expected.std()
        if not difference <= tolerance:
            raise ValueError(
                f"CausalLMPolicy cannot use {type(model).__name__}: its logits for a text read {name} are not those of the "
                f"model itself (on average {difference:.2g} standard deviations away). It does something that is known "
                "neither to the last layer nor to the key/value cache, such as scaling logits or attending in another way. "
                "Use another model."
            )
