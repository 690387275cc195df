"""``sb3-grpo hub``: share models on the Hugging Face Hub."""

import argparse
from pathlib import Path

from sb3_grpo.cli.runs import MODEL, read_config
from sb3_grpo.console import ALGORITHMS, OK, UsageError, find_env, say


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """
    :param commands: where to add the command
    """
    parser = commands.add_parser(
        "hub",
        help="share models on the Hugging Face Hub, without pickles",
        description="Share models on the Hugging Face Hub. Their files hold only data: loading them runs no code. "
        "To upload, log in first: hf auth login.",
    )
    others = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    push = others.add_parser(
        "push",
        help="upload the model of a run of train",
        description="Evaluate the model of a run of train, and upload it with a card and its clip.",
    )
    push.add_argument("folder", type=Path, help="folder of the run")
    push.set_defaults(run=_push)
    load = others.add_parser(
        "load", help="download a model", description="Download a model. Files with pickles, which could run code, are refused."
    )
    load.add_argument("--output", type=Path, default=Path(MODEL), help="file to write (default: %(default)s)")
    load.set_defaults(run=_load)
    for command in push, load:
        command.add_argument("repo", help="repository: USER/NAME")


def _push(args: argparse.Namespace) -> int:
    from sb3_grpo.hub import CLIP, push_to_hub

    config = read_config(args.folder)
    arguments = config["arguments"]
    if arguments.get("command") != "train":
        raise UsageError(f"{args.folder} is a run of {arguments.get('command')}. In Python: push_to_hub(model, repo, env=...)")
    find_env(arguments["env"])
    clip = args.folder / CLIP if (args.folder / CLIP).exists() else None
    model = ALGORITHMS[arguments["algo"]].load(args.folder / MODEL)
    address = push_to_hub(model, args.repo, arguments["env"], command=config.get("command", "sb3-grpo train"), clip=clip)
    say("Uploaded: ", address)
    return OK


def _load(args: argparse.Namespace) -> int:
    from sb3_grpo.hub import load_from_hub

    # The name that saving would give it
    output = args.output if args.output.suffix else Path(f"{args.output}.zip")
    for path in (args.output, output):
        if path.exists():
            raise UsageError(f"There is already {path}: choose another --output")
    model = load_from_hub(args.repo)
    model.save(output, format="safe")
    say(f'Saved: {output}. To use it: {type(model).__name__}.load("{output}")')
    return OK
