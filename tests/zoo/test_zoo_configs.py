import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch as th

pytest.importorskip("rl_zoo3")

import yaml

from sb3_grpo.console import UsageError, find_env
from sb3_grpo.zoo.experiment import GroupExperimentManager
from sb3_grpo.zoo.hyperparams import UNDOCUMENTED, config_path, provenance

ROOT = Path(__file__).resolve().parents[2]
ALGORITHMS = ("ppo", "grpo", "dapo", "trpo", "a2c", "ppo_lstm", "ppo_mask")
ENTRIES = {algo: yaml.safe_load((ROOT / "zoo_configs" / f"{algo}.yml").read_text()) for algo in ALGORITHMS}
# Entries that PPO has only as one of SB3-Contrib's variants
CONTRIB = {name: algo for algo in ("ppo_lstm", "ppo_mask") for name in ENTRIES[algo] if name not in ENTRIES["ppo"]}
# What the general entries are tried on
EXAMPLES = {"default": "CartPole-v1", "atari": "PongNoFrameskip-v4"}
SMALL: dict[str, dict[str, Any]] = {
    "groups": {"group_size": 2, "n_groups": 1, "batch_size": 16, "n_epochs": 1, "dynamic_sampling": False},
    **{algo: {"n_steps": 8, "batch_size": 8, "n_epochs": 1} for algo in ("ppo", "ppo_lstm", "ppo_mask")},
    "trpo": {"n_steps": 8, "batch_size": 8, "n_critic_updates": 1, "cg_max_steps": 2},
    "a2c": {"n_steps": 4},
}


def experiment(algo: str, env_id: str, folder: Path, **hyperparams: Any) -> GroupExperimentManager:
    return GroupExperimentManager(
        argparse.Namespace(),
        algo,
        env_id,
        str(folder),
        n_timesteps=48,
        eval_freq=-1,
        hyperparams=hyperparams,
        log_interval=-1,
        verbose=0,
        device="cpu",
    )


def each_entry() -> Iterator[Any]:
    """Of those with images, which take seconds, only DAPO's in the fast tests."""
    for algo in ALGORITHMS:
        for name in ENTRIES[algo]:
            is_slow = name in ("atari", "CarRacing-v3") and algo != "dapo"
            yield pytest.param(algo, name, marks=[pytest.mark.slow] if is_slow else [])


@pytest.mark.parametrize(("algo", "name"), [*each_entry()])
def test_entry_takes_a_few_updates(algo: str, name: str, tmp_path: Path) -> None:
    env_id = "InvalidActionEnvDiscrete-v0" if (algo, name) == ("ppo_mask", "default") else EXAMPLES.get(name, name)
    entry = ENTRIES[algo][name]
    try:
        find_env(env_id)
        gym.make(env_id, **entry.get("env_kwargs", {})).close()
    except (gym.error.Error, UsageError) as error:
        pytest.skip(f"{env_id} is not installed: {error}")
    wrappers = [*entry.get("env_wrapper", []), {"gymnasium.wrappers.TimeLimit": {"max_episode_steps": 6}}]
    small = {"n_envs": 2, "env_wrapper": wrappers, **SMALL.get(algo, SMALL["groups"])}
    if algo in ("grpo", "dapo") and "n_steps" in entry:
        small |= {"n_steps": 12, "n_groups": None}
    if "callback" in entry:
        warm_start, *others = entry["callback"]
        small["callback"] = [{name: {"n_examples": 4, "n_epochs": 1} for name in warm_start}, *others]
    manager = experiment(algo, env_id, tmp_path, **small)
    result = manager.setup_experiment()
    assert result is not None
    model, _ = result
    manager.learn(model)
    assert model.num_timesteps >= 48
    assert model._n_updates >= 2
    assert all(th.isfinite(parameter).all() for parameter in model.policy.parameters())


def network(algo: str, name: str) -> tuple[Any, ...]:
    """The layers of the actor, what activates them, and the observations they get."""
    entry = ENTRIES[algo].get(name, ENTRIES[algo]["default"])
    kwargs = eval(entry.get("policy_kwargs", "{}"), {"nn": th.nn, "RMSpropTFLike": None})
    layers = kwargs.pop("net_arch", None)
    actor = layers["pi"] if isinstance(layers, dict) else layers
    other = {key: value for key, value in kwargs.items() if key in ("n_layers", "width", "n_heads", "lstm_hidden_size")}
    wrappers = [next(iter(wrapper)) if isinstance(wrapper, dict) else wrapper for wrapper in entry.get("env_wrapper", [])]
    policy = "text" if "Token" in entry["policy"] else entry["policy"]
    return actor, kwargs.get("activation_fn"), other, policy, wrappers, entry.get("frame_stack")


# HalfCheetah's has the default network, as other tasks of MuJoCo have without an entry
@pytest.mark.parametrize("name", [name for name in ENTRIES["grpo"] if name != "HalfCheetah-v5"])
def test_all_algorithms_have_the_entry_and_its_network(name: str) -> None:
    algorithms = ("grpo", "dapo", CONTRIB[name]) if name in CONTRIB else ("grpo", "dapo", "ppo", "trpo", "a2c")
    networks = {algo: network(algo, name) for algo in algorithms}
    assert all(each == networks["grpo"] for each in networks.values()), networks


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_entry_says_how_it_was_found(algo: str) -> None:
    if algo not in CONTRIB.values():
        names = [name for name in ENTRIES["ppo"] if name in ENTRIES[algo] or algo in ("trpo", "a2c")]
        assert [name for name in ENTRIES[algo] if name not in CONTRIB] == names
    for name in ENTRIES[algo]:
        text = provenance(algo, EXAMPLES.get(name, name))
        assert re.search("[Tt]uned|RL Zoo|defaults", text), (name, text)


@pytest.mark.parametrize(("algo", "least"), [("ppo", 11), ("trpo", 11), ("a2c", 11), ("ppo_lstm", 4)])
def test_values_of_the_zoo_are_copied_right(algo: str, least: int) -> None:
    import rl_zoo3

    theirs = yaml.safe_load((Path(rl_zoo3.__file__).parent / "hyperparams" / f"{algo}.yml").read_text())
    compared = 0
    for name, entry in ENTRIES[algo].items():
        names = [name, name.replace("-v5", "-v4"), re.sub("-v[35]$", "-v2", name)]
        their_name = next((each for each in names if each in theirs), None)
        if their_name is None:
            continue
        for key, value in theirs[their_name].items():
            # The RL Zoo's default policy of RecurrentPPO does not exist
            if key not in ("policy_kwargs", "env_wrapper") and (algo, name, key) != ("ppo_lstm", "default", "policy"):
                assert entry[key] == (float(value) if key == "n_timesteps" else value), (name, key)
        compared += 1
    assert compared >= least


def test_which_entry_applies_and_what_it_says(tmp_path: Path) -> None:
    assert provenance("dapo", "HalfCheetah-v5").startswith("The defaults, except log_std_init, which is that of")
    assert provenance("dapo", "FrozenLake-v1").startswith("Not tuned: DAPO's defaults, for environments")
    assert provenance("grpo", "sb3_grpo/VerifierText-v0") == provenance("grpo", "sb3_grpo:sb3_grpo/VerifierText-v0")
    # The RL Zoo's own file, because there is none here
    assert config_path("sac").parent.name == "hyperparams"
    assert provenance("sac", "FrozenLake-v1") != UNDOCUMENTED


def test_atari_games_take_the_atari_entry() -> None:
    pytest.importorskip("ale_py")
    assert provenance("dapo", "ALE/Pong-v5") == provenance("dapo", "PongNoFrameskip-v4")
    assert "life" in provenance("dapo", "ALE/Pong-v5")


def test_atari_frames_are_not_skipped_twice(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    manager = experiment("dapo", "ALE/Pong-v5", tmp_path, n_envs=1)
    model, saved = manager.setup_experiment() or pytest.fail("no model")
    env = model.get_env()
    assert env.get_attr("_frameskip") == [1] and manager.create_envs(1, eval_env=True).get_attr("_frameskip") == [1]
    env.close()
    # From here, enjoy and record_video know
    assert saved["env_kwargs"] == manager.args.env_kwargs == {"frameskip": 1}


def test_arguments_of_an_entry_hold_for_evaluation(tmp_path: Path) -> None:
    small = {**SMALL["groups"], "n_envs": 1, "callback": None}
    manager = experiment("grpo", "sb3_grpo/VerifierText-v0", tmp_path, **small)
    model, _ = manager.setup_experiment() or pytest.fail("no model")
    answers = [env.get_attr("rules")[0].max_answer_tokens for env in (model.get_env(), manager.create_envs(1, eval_env=True))]
    assert answers == [ENTRIES["grpo"]["sb3_grpo/VerifierText-v0"]["env_kwargs"]["max_answer_tokens"]] * 2
