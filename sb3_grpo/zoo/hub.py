"""RL Zoo's commands for the Hugging Face Hub, without pickles and without configuration files that could run code."""

import argparse
import shlex
from pathlib import Path

import yaml
from huggingface_sb3 import EnvironmentName
from rl_zoo3 import get_latest_run_id, get_saved_hyperparams
from rl_zoo3.utils import create_test_env, get_model_path

from sb3_grpo.console import ALGORITHMS, find_env
from sb3_grpo.hub import load_from_hub, push_to_hub
from sb3_grpo.zoo.hyperparams import config_path, entry_name


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--algo", choices=ALGORITHMS, required=True, help="algorithm")
    parser.add_argument("--env", required=True, help="id of the environment")
    parser.add_argument("-f", "--folder", default="logs", help="folder of the logs (default: %(default)s)")
    parser.add_argument("-orga", "--organization", required=True, help="user or organization")
    args = parser.parse_args()
    args.command = f"python -m sb3_grpo.zoo train --algo {args.algo} --env {shlex.quote(args.env)}"
    args.env = EnvironmentName(find_env(args.env).id)
    args.repo = f"{args.organization}/{args.algo}-{args.env}"
    return args


def push() -> None:
    """Upload the latest model of an environment."""
    args = _arguments()
    _, path, folder = get_model_path(0, args.folder, args.algo, args.env)
    hyperparams, stats = get_saved_hyperparams(str(Path(folder, args.env)), test_mode=True)
    # Written by train on this machine, in a form that only this loader reads
    trained = yaml.load(Path(folder, args.env, "args.yml").read_text(), yaml.UnsafeLoader)
    env = create_test_env(
        args.env.gym_id, stats_path=stats, should_render=False, hyperparams=hyperparams, env_kwargs=trained["env_kwargs"]
    )
    command = f"{args.command} --seed {trained['seed']}"
    command += f" -n {trained['n_timesteps']}" * (trained["n_timesteps"] > 0)
    command += f" --conf-file {shlex.quote(trained['conf_file'])}" if trained["conf_file"] else ""
    for option, name in ("-params", "hyperparams"), ("--env-kwargs", "env_kwargs"):
        given = [shlex.quote(f"{key}:{value!r}") for key, value in (trained[name] or {}).items()]
        command += f" {option} {' '.join(given)}" * bool(given)
    print(push_to_hub(ALGORITHMS[args.algo].load(path, env), args.repo, env, command=command))


def load() -> None:
    """Download a model to where ``enjoy`` finds it, with our entry of its environment."""
    args = _arguments()
    model = load_from_hub(args.repo)
    folder = Path(args.folder, args.algo)
    folder /= f"{args.env}_{get_latest_run_id(str(folder), args.env) + 1}"
    entries = yaml.safe_load(config_path(args.algo).read_text())
    # No model that could be uploaded needs the statistics of VecNormalize
    entry = {**entries[entry_name(entries, args.env.gym_id)], "normalize": False}
    if "AtariWrapper" in str(entry.get("env_wrapper")):
        # As in training: the wrapper skips frames
        entry["env_kwargs"] = {"frameskip": 1}
    (folder / args.env).mkdir(parents=True)
    (folder / args.env / "config.yml").write_text(yaml.safe_dump(entry))
    model.save(folder / f"{args.env}.zip", format="safe")
    print(f"Saved in {folder}")
