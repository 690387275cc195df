"""Registration of the algorithms in the RL Zoo."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import rl_zoo3
import rl_zoo3.exp_manager
import rl_zoo3.hyperparams_opt
import rl_zoo3.train
import rl_zoo3.utils
from sb3_contrib import MaskablePPO

from sb3_grpo import DAPO, GRPO
from sb3_grpo.common.callbacks import ClampedProgressBarCallback
from sb3_grpo.zoo.evaluation import MaskedEvalCallback, MaskedTrialEvalCallback
from sb3_grpo.zoo.experiment import GroupExperimentManager
from sb3_grpo.zoo.search_space import convert_params, sample_params

# SB3-Contrib's environments with action masks, which it does not register
_MASKED_ENVS: dict[str, dict[str, Any]] = {
    "InvalidActionEnvDiscrete": {"dim": 80, "n_invalid_actions": 60},
    "InvalidActionEnvMultiDiscrete": {"dims": [20, 20], "n_invalid_actions": 20},
}


def register() -> None:
    """
    Register ``grpo``, ``dapo`` and ``ppo_mask`` in the RL Zoo, also when it is used from Python. Calling this again has no
    effect.
    """
    rl_zoo3.ALGOS.update({"grpo": GRPO, "dapo": DAPO, "ppo_mask": MaskablePPO})
    samplers, converters = rl_zoo3.hyperparams_opt.HYPERPARAMS_SAMPLER, rl_zoo3.hyperparams_opt.HYPERPARAMS_CONVERTER
    samplers.update({"grpo": sample_params, "dapo": sample_params, "ppo_mask": samplers["ppo"]})  # type: ignore[dict-item]
    converters.update({"grpo": convert_params, "dapo": convert_params, "ppo_mask": converters["ppo"]})
    for name, kwargs in _MASKED_ENVS.items():
        if f"{name}-v0" not in gym.registry:
            gym.register(f"{name}-v0", f"sb3_contrib.common.envs:{name}", kwargs=kwargs)
    # These modules of the RL Zoo have imported the names
    for module in (rl_zoo3.exp_manager, rl_zoo3.train):
        module.ExperimentManager = GroupExperimentManager  # type: ignore[attr-defined]
    rl_zoo3.exp_manager.EvalCallback = MaskedEvalCallback  # type: ignore[misc]
    rl_zoo3.exp_manager.TrialEvalCallback = MaskedTrialEvalCallback  # type: ignore[misc]
    rl_zoo3.exp_manager.ProgressBarCallback = ClampedProgressBarCallback  # type: ignore[misc]
    # Not where new runs get their numbers
    rl_zoo3.utils.get_latest_run_id = latest_run_with_a_model


def latest_run_with_a_model(log_path: str, env_name: str) -> int:
    """
    The RL Zoo takes the run with the highest number, even if it failed.

    :param log_path: folder with the runs of an algorithm
    :param env_name: name of the environment
    :return: number of the latest run that has a model, 0 if there is none
    """
    numbers = (path.parent.name.rpartition("_")[2] for path in Path(log_path).glob(f"{env_name}_*/*.zip"))
    return max((int(number) for number in numbers if number.isdigit()), default=0)
