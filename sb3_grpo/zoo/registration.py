"""Registration of the algorithms in the RL Zoo."""

import rl_zoo3
import rl_zoo3.enjoy
import rl_zoo3.exp_manager
import rl_zoo3.hyperparams_opt
import rl_zoo3.train
import rl_zoo3.utils

from sb3_grpo import DAPO, GRPO
from sb3_grpo.zoo.experiment import GroupExperimentManager
from sb3_grpo.zoo.runs import get_model_path
from sb3_grpo.zoo.search_space import convert_params, sample_dapo_params, sample_grpo_params


def register() -> None:
    """
    Register ``grpo`` and ``dapo`` in the RL Zoo, also when it is used from Python. Calling this again has no effect.
    """
    rl_zoo3.ALGOS.update({"grpo": GRPO, "dapo": DAPO})
    rl_zoo3.hyperparams_opt.HYPERPARAMS_SAMPLER.update({"grpo": sample_grpo_params, "dapo": sample_dapo_params})
    rl_zoo3.hyperparams_opt.HYPERPARAMS_CONVERTER.update(dict.fromkeys(("grpo", "dapo"), convert_params))
    # These modules of the RL Zoo have imported the names
    for module in (rl_zoo3.exp_manager, rl_zoo3.train):
        module.ExperimentManager = GroupExperimentManager  # type: ignore[attr-defined]
    for module in (rl_zoo3.utils, rl_zoo3.enjoy):
        module.get_model_path = get_model_path  # type: ignore[attr-defined]
