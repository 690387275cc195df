"""The page of all arguments, ``docs/algorithms/arguments.md``: ``python -m benchmarks.arguments``."""

import inspect
import re

from stable_baselines3 import PPO

from benchmarks.blocks import markdown, wrap
from benchmarks.common import ROOT
from sb3_grpo import DAPO, GRPO
from sb3_grpo.common.arguments import ARGUMENTS
from sb3_grpo.common.policies import ActorPolicy
from sb3_grpo.utils.parameters import Choice

PAGE = ROOT / "docs" / "algorithms" / "arguments.md"


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


def with_values(name: str, meaning: str) -> str:
    """
    :param name: An argument
    :param meaning: What it means
    :return: The same with all its values, if there is a choice and they do not stand there already
    """
    kind = ARGUMENTS.get(name)
    if not isinstance(kind, Choice):
        return meaning
    values = [f'`"{value}"`' for value in kind.names] + ["a number"] * bool(kind.number) + ["a function"] * bool(kind.call)
    return meaning if all(value in meaning for value in values) else f"{meaning}. Values: {', '.join(values)}"


def arguments_page() -> str:
    """
    :return: The page of all arguments, with their defaults next to PPO's
    """
    of = [dict(inspect.signature(algorithm).parameters) for algorithm in (GRPO, DAPO, PPO)]

    def default(name: str, parameters: dict[str, inspect.Parameter]) -> str:
        if name not in parameters:
            return ""
        value = parameters[name].default
        value = ActorPolicy.default_arguments({}).get(name) if value is None else value
        return "required" if value is inspect.Parameter.empty else f"`{value!r}`"

    parts = [
        "# All arguments\n",
        "The arguments of `GRPO` and `DAPO` with their defaults for `MlpPolicy` (others for "
        "[images](../guide/training.md#atari) and [texts](../text_policies.md)), next to those of PPO in Stable-Baselines3. "
        "The [API](../api/algorithms.md) "
        "describes each in full. An empty cell: PPO has no such argument. If neither `n_steps` nor `n_groups` is given, the "
        "size of an update is [chosen](index.md#steps-or-whole-groups).\n",
    ]
    for title, meanings in groups_of_arguments().items():
        rows = [
            [f"`{name}`", *(default(name, each) for each in of), with_values(name, meaning)]
            for name, meaning in meanings.items()
        ]
        parts.append(f"## {title}\n\n{markdown(['argument', 'GRPO', 'DAPO', 'PPO', 'meaning'], rows)}\n")
    only_ppo = ", ".join(f"`{name}`" for name in of[2] if name not in of[0])
    parts.append(f"PPO alone has {only_ppo}.\n")
    return wrap("\n".join(parts)) + "\n"


if __name__ == "__main__":
    PAGE.write_text(arguments_page(), encoding="utf-8")
