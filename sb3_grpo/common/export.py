"""The deterministic actions of a model as an ONNX file, for programs without PyTorch."""

import copy
import importlib
import warnings
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

from sb3_grpo.common.policies import ActorPolicy
from sb3_grpo.common.sampling import unchecked_distributions
from sb3_grpo.utils.action_masks import METHOD, n_choices
from sb3_grpo.utils.spaces import parts_of

# Observations with which a file is compared with the model, and the share of them that has to agree: in a tie, the last bit
# decides between two discrete actions
N_SAMPLES, MIN_AGREEMENT = 64, 0.95
# Spaces may be as wide as the numbers, and the sums in a network may not
_MAX_SAMPLE = 1e4


def onnx_bytes(model: BaseAlgorithm) -> bytes:
    """
    :param model: A model whose policy reads numbers or images
    :return: Its deterministic actions as an ONNX file, after it was compared with ``predict``
    :raises ImportError: if a package is missing
    :raises ValueError: if the model cannot be exported
    """
    policy: Any = model.policy
    if policy.reads_texts:
        raise ValueError(
            f"{type(policy).__name__} writes an answer token by token, which is no function of a single observation. Only "
            'policies of numbers and images are exported: use model.save(path), or format="safe" to share a model.'
        )
    if policy.is_recurrent:
        raise ValueError(
            f"{type(policy).__name__} remembers earlier observations, and a file is a function of a single one: use "
            'model.save(path), or format="safe" to share a model.'
        )
    try:
        runtime, *_ = (importlib.import_module(name) for name in ("onnxruntime", "onnx", "onnxscript"))
    except ImportError as error:
        raise ImportError(f'export_onnx needs {error.name}: pip install "sb3-grpo[onnx]"', name=error.name) from error
    actor = _DeterministicActor(policy, model.get_vec_normalize_env()).to(policy.device).eval()
    samples = {name: _samples(space) for name, space in actor.inputs.items()}
    if actor.masks is not None:
        samples[actor.masks] = _mask_samples(policy.action_space)
    batch = th.export.Dim("batch")
    # The batch axis of an example must not be 1, which the exporter takes for a constant
    with unchecked_distributions(), th.no_grad(), warnings.catch_warnings(action="ignore"):
        program = th.onnx.export(
            actor,
            tuple(th.as_tensor(values[:2], device=policy.device) for values in samples.values()),
            input_names=[*samples],
            output_names=["action"],
            dynamic_shapes={"observations": tuple({0: batch} for _ in samples)},
            dynamo=True,
            verbose=False,
        )
    exported = program.model_proto.SerializeToString()  # type: ignore[union-attr]
    try:
        session = runtime.InferenceSession(exported, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ValueError(
            f"onnxruntime refuses the exported file: {error}. Rename a part of the observation that has the name of "
            "the output (action) or of an operation, such as linear or cat."
        ) from error
    _compare(session, model, samples, actor.masks)
    return exported


class _DeterministicActor(nn.Module):
    """
    ``VecNormalize`` and ``predict(deterministic=True)`` as one module.

    :param policy: A policy
    :param normalizer: The ``VecNormalize`` of its environments, if there is one
    :raises ValueError: if its statistics are of other observations
    """

    def __init__(self, policy: ActorPolicy, normalizer: VecNormalize | None):
        super().__init__()
        self.policy = policy
        self.inputs = _by_name(policy.observation_space)
        # Name of the input for masks that are not in the observation
        self.masks = (METHOD + "_" * (METHOD in self.inputs)) if policy.has_masks else None
        # With the limit to which VecNormalize clips
        self.normalized: list[tuple[str, float]] = []
        if normalizer is not None and normalizer.norm_obs:
            statistics = normalizer.obs_rms if isinstance(normalizer.obs_rms, dict) else {"observation": normalizer.obs_rms}
            self.normalized = [(name, normalizer.clip_obs) for name in statistics]
            observed = _by_name(normalizer.venv.observation_space)
            for index, (name, each) in enumerate(statistics.items()):
                if name not in self.inputs or each.mean.shape != self.inputs[name].shape:
                    raise ValueError(
                        "The observations of VecNormalize are not those of the policy: make it the last wrapper, as in "
                        "VecNormalize(VecFrameStack(env, 4))."
                    )
                self.inputs[name] = observed[name]
                self.register_buffer(f"mean{index}", th.as_tensor(each.mean))
                self.register_buffer(f"scale{index}", th.as_tensor((each.var + normalizer.epsilon) ** -0.5))
        self.actions = policy.action_space
        self.dtype = th.as_tensor(np.zeros(1, self.actions.dtype)).dtype
        if isinstance(self.actions, spaces.Box):
            self.register_buffer("low", th.as_tensor(self.actions.low).double())
            self.register_buffer("high", th.as_tensor(self.actions.high).double())

    def forward(self, *observations: th.Tensor) -> th.Tensor:
        entries: Any = dict(zip(self.inputs, observations[: len(self.inputs)], strict=True))
        masks = {} if self.masks is None else {"action_masks": observations[-1]}
        for index, (name, limit) in enumerate(self.normalized):
            mean, scale = self.get_buffer(f"mean{index}"), self.get_buffer(f"scale{index}")
            entries[name] = ((entries[name] - mean) * scale).clamp(-limit, limit).float()
        is_dict = isinstance(self.policy.observation_space, spaces.Dict)
        actions = self.policy._predict(entries if is_dict else entries["observation"], deterministic=True, **masks)
        actions = actions.reshape((-1, *self.actions.shape))  # type: ignore[misc]
        if isinstance(self.actions, spaces.MultiDiscrete):
            return actions.to(self.dtype)
        if not isinstance(self.actions, spaces.Box):
            return actions
        low, high = self.get_buffer("low"), self.get_buffer("high")
        if self.policy.squash_output:
            actions = low + 0.5 * (actions + 1.0) * (high - low)
        actions = th.minimum(th.maximum(actions.double(), low), high)
        return (actions if self.dtype.is_floating_point else actions.round()).to(self.dtype)


def _by_name(space: spaces.Space) -> dict[str, Any]:
    return {key or "observation": part for key, part in parts_of(space).items()}


def _samples(space: spaces.Space) -> np.ndarray:
    space = copy.deepcopy(space)
    space.seed(0)
    values = np.stack([np.asarray(space.sample()) for _ in range(N_SAMPLES)])
    return values.clip(-_MAX_SAMPLE, _MAX_SAMPLE) if np.issubdtype(values.dtype, np.floating) else values


def _mask_samples(space: spaces.Space) -> np.ndarray:
    sizes = n_choices(space)
    masks = _samples(spaces.MultiBinary(sum(sizes))).astype(bool)
    masks[:, np.cumsum([0, *sizes[:-1]])] = True  # something of each part has to be allowed
    return masks


def _compare(session: Any, model: Any, samples: dict[str, np.ndarray], masks: str | None) -> None:
    """
    :param session: The session of ``onnxruntime`` that runs the file
    :param model: The model
    :param samples: Observations, and masks, by the name of the input
    :param masks: Name of the input for masks
    :raises ValueError: if they disagree
    """
    observations: Any = {name: values for name, values in samples.items() if name != masks}
    if not isinstance(model.observation_space, spaces.Dict):
        observations = observations["observation"]
    normalizer = model.get_vec_normalize_env()
    if normalizer is not None:
        observations = normalizer.normalize_obs(observations)
    wanted, _ = model.predict(observations, deterministic=True, action_masks=None if masks is None else samples[masks])
    got = session.run(None, samples)[0]
    agree = np.isclose(got, wanted, rtol=1e-3, atol=1e-4).reshape(N_SAMPLES, -1).all(axis=1)
    if agree.mean() < MIN_AGREEMENT:
        raise ValueError(
            f"The exported actions are those of predict in only {agree.mean():.0%} of {N_SAMPLES} observations: does "
            f"{type(model.policy).__name__}, or its features extractor, depend on more than the observation?"
        )
