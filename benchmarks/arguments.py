"""The page of all arguments, ``docs/algorithms/arguments.md``: ``python -m benchmarks.arguments``."""

import inspect
import re

from stable_baselines3 import PPO

from benchmarks.blocks import markdown, wrap
from benchmarks.common import ROOT
from sb3_grpo import DAPO, GRPO
from sb3_grpo.common.policies import ActorPolicy

PAGE = ROOT / "docs" / "algorithms" / "arguments.md"
# At most ten words for each argument: the table has to be readable on a phone
MEANINGS = {
    "policy": '`"MlpPolicy"`, `"CnnPolicy"`, `"MlpLstmPolicy"`, ... or a class',
    "env": "An environment, a `VecEnv` or an id",
    "learning_rate": "Learning rate, or a schedule",
    "batch_size": "Minibatch size, in steps",
    "gradient_accumulation_steps": "Minibatches for each optimizer step",
    "n_epochs": "Passes over the steps of an update",
    "ent_coef": "Entropy coefficient",
    "vf_coef": "Coefficient of an auxiliary value loss",
    "max_grad_norm": "Gradient clipping",
    "target_kl": "Stop an update at 1.5 times this KL divergence",
    "n_envs": "Parallel environments, if `env` is an id (16)",
    "group_size": "Episodes that share a start",
    "n_steps": "Steps of each environment in an update",
    "n_groups": "Whole groups in an update, instead of `n_steps`",
    "dynamic_sampling": "Replace groups whose outcomes are all equal",
    "max_sampling_rounds": "How often groups are drawn at most",
    "gamma": "Discount factor",
    "advantage": "[What is compared](grpo.md#advantages) within a group",
    "gae_lambda": 'Lambda of generalized advantage estimation, for `"gae"`',
    "leave_one_out": "Compare a member with the others only",
    "advantage_scale": 'Standard deviation that divides advantages (`"none"`: nothing does)',
    "normalize_reward_parts": "Normalise each part of a reward (GDPO)",
    "policy_loss": "The [loss](losses.md)",
    "clip_range": "The ratio may fall to 1 minus this",
    "clip_range_high": "It may rise to 1 plus this",
    "loss_average": "[Average](grpo.md#the-average-of-the-loss) over steps or episodes",
    "ratio_level": "Ratio of each step, or of the episode (GSPO)",
    "kl_coef": "Coefficient of the [KL divergence](grpo.md#the-reference-policy)",
    "kl_estimator": "How that divergence is estimated",
    "ref_update_interval": "Updates after which the reference is renewed",
    "overlong_filter": "Leave truncated episodes out of the loss",
    "overlong_range": "Lengths between which a penalty grows",
    "unrelated_starts": "Each episode of a group may begin anywhere",
    "start_sampler": "Draws the [starts](../guide/starts.md) of groups",
    "use_masking": "Use the environment's action masks",
}


def groups_of_arguments() -> dict[str, dict[str, str]]:
    """
    :return: The groups of arguments in the docstring of GRPO: the first sentence of each argument, in Markdown
    """
    groups: dict[str, dict[str, str]] = {}
    for title, text in re.findall(r"^\*\*(.+?)\*\*$(.+?)(?=^\*\*|\Z)", inspect.getdoc(GRPO) or "", re.MULTILINE | re.DOTALL):
        found = re.findall(r"^:param (\w+): (.+?)(?=^:param|\Z)", text, re.MULTILINE | re.DOTALL)
        # A sentence ends with a full stop, but not with that of "eq. 8" or "Dr. GRPO"
        sentences = {
            name: re.split(r"(?<!\beq)(?<!\bDr)\.\s", " ".join(meaning.split()) + " ")[0].strip() for name, meaning in found
        }
        groups[title] = {name: re.sub(r":\w+:`|``", "`", sentence) for name, sentence in sentences.items()}
    return groups


def arguments_page() -> str:
    """
    :return: The page of all arguments, with their defaults next to PPO's
    """
    of = [dict(inspect.signature(algorithm).parameters) for algorithm in (GRPO, DAPO, PPO)]

    def default(name: str, parameters: dict[str, inspect.Parameter]) -> str:
        if name not in parameters:
            return "new"
        value = parameters[name].default
        value = ActorPolicy.default_arguments({}).get(name) if value is None else value
        return "required" if value is inspect.Parameter.empty else f"`{value!r}`"

    def defaults(name: str) -> str:
        grpo, dapo, ppo = (default(name, each) for each in of)
        return grpo + f", DAPO {dapo}" * (dapo != grpo) + f" ({ppo})" * (ppo != grpo)

    parts = [
        "# All arguments\n",
        "GRPO and DAPO share these arguments. PPO's default stands in brackets where it differs; (new) means that PPO has no "
        "such argument. The defaults are those of `MlpPolicy` on control: those for [images](../guide/training.md#atari) and "
        "[texts](../text.md#policies-and-their-defaults) differ. The [API](../api/index.md#algorithms) describes each "
        "argument in full, with all its values.\n",
    ]
    groups = groups_of_arguments()
    as_in_sb3 = groups.pop("As in Stable-Baselines3")
    for title, meanings in groups.items():
        rows = [[f"`{name}`", defaults(name), MEANINGS.get(name, meaning)] for name, meaning in meanings.items()]
        parts.append(f"## {title}\n\n{markdown(['argument', 'default (PPO)', 'meaning'], rows)}\n")
    only_ppo = ", ".join(f"`{name}`" for name in of[2] if name not in of[0])
    assert all(defaults(name) == default(name, of[2]) for name in as_in_sb3)
    names = ", ".join(f"`{name}`" for name in as_in_sb3)
    parts.append(
        f"## As in Stable-Baselines3\n\nWith the same meanings and defaults: {names}. {only_ppo} are PPO's alone.\n\n"
        "If neither `n_steps` nor `n_groups` is given, the size of an update is [chosen](index.md#steps-or-whole-groups).\n"
    )
    parts.append("**Next:** [GRPO and DAPO](grpo.md) has the formulas, [Losses](losses.md) the losses.")
    return wrap("\n".join(parts)) + "\n"


if __name__ == "__main__":
    PAGE.write_text(arguments_page(), encoding="utf-8")
