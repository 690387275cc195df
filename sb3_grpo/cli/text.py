"""``sb3-grpo text``: train a small transformer to add, with rewards from a verifier."""

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch as th
from rich.text import Text
from stable_baselines3.common.utils import LinearSchedule

from sb3_grpo import GRPO, presets
from sb3_grpo.cli.runs import Curve, Run, add_run_options, curve_figure, positive, run_arguments, say_table
from sb3_grpo.cli.settings import parse_settings
from sb3_grpo.console import ALGORITHMS, UsageError, say
from sb3_grpo.envs import ArithmeticTask, HardPrompts, VerifierTextVecEnv
from sb3_grpo.text.policies import TokenPolicy

NETWORK = {"n_layers": 2, "width": 64, "n_heads": 4}
# No overlong_filter: with it, nothing would teach the policy that answers without an end are wrong
SETTINGS: dict[str, Any] = {**presets.TEXT, "max_sampling_rounds": 8, "overlong_filter": False}
N_ENVS = 512
WARM_START_BATCH = 32

_N_SHOWN = 5
_N_POINTS = 50


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


class Exam:
    """
    Test of a policy on all prompts of a task, answered greedily (with the most likely tokens).

    :param task: the task
    """

    def __init__(self, task: ArithmeticTask):
        assert task.n_items is not None
        self._items = [task.item(index) for index in range(task.n_items)]
        self._shown = np.random.default_rng(0).choice(len(self._items), size=_N_SHOWN, replace=False).tolist()

    def __len__(self) -> int:
        return len(self._items)

    def take(self, policy: TokenPolicy) -> tuple[list[str], list[bool]]:
        """
        :param policy: the policy
        :return: its answers, and whether each is right
        """
        answers = policy.generate([item.prompt for item in self._items])
        return answers, [answer == item.answer for answer, item in zip(answers, self._items, strict=True)]

    def show(self, policy: TokenPolicy, when: str) -> float:
        """
        Print the share of right answers and some examples, always for the same prompts.

        :param policy: the policy
        :param when: when the test takes place, printed first
        :return: share of right answers over all prompts
        """
        answers, right = self.take(policy)
        share = float(np.mean(right))
        say(Text(when, "bold"), f": {sum(right)} of {len(self)} answers are right ({share:.1%}), for example")
        rows = []
        for index in self._shown:
            verdict = Text("right", "green") if right[index] else Text("wrong", "red")
            rows.append((Text(f"  {self._items[index].prompt}{answers[index]}"), verdict))
        say_table(rows)
        return share


class AnswersCurve(Curve):
    """
    Record the share of right answers at intervals, between two updates.

    :param exam: the test to take
    :param interval: minimum number of tokens between two points
    """

    def __init__(self, exam: Exam, interval: float):
        super().__init__()
        self.exam = exam
        self.interval = interval

    def _on_rollout_start(self) -> None:
        # A resumed run already has the point of the step at which it was interrupted
        is_new = not self.points or self.num_timesteps > self.points[-1][0]
        if is_new and self.num_timesteps >= len(self.points) * self.interval:
            _, right = self.exam.take(self.model.policy)  # type: ignore[arg-type]
            self.points.append((self.num_timesteps, float(np.mean(right))))

    def _on_step(self) -> bool:
        return True


def add_text(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """
    :param commands: where to add the command
    """
    one, two = LESSONS.values()
    parser = commands.add_parser(
        "text",
        help="train a small transformer to add, rewarded for right answers",
        description="Train a small transformer to add: after a warm start on a few worked examples, it learns only from "
        "whether its answers are right. Shows some answers before and after. On one CPU thread, one digit takes two to three "
        "minutes. Ctrl-C and SIGTERM stop training early and save the model; --resume continues it.",
        epilog="sb3-grpo train --help lists the hyperparameters for --set.",
    )
    parser.add_argument("--algo", default="dapo", choices=ALGORITHMS, help="the algorithm (default: %(default)s)")
    parser.add_argument(
        "--digits",
        type=int,
        default=1,
        choices=LESSONS,
        help="number of digits of the numbers to add (default: %(default)s). "
        f"The policy is tested on all one-digit sums, or on {two.n_test} held-out two-digit sums",
    )
    parser.add_argument(
        "--timesteps",
        type=positive,
        help=f"number of tokens to train for (default: {one.timesteps:,} with one digit, {two.timesteps:,} with two)",
    )
    parser.add_argument(
        "--examples",
        type=positive,
        help=f"worked examples for the warm start (default: {one.examples}, {one.passes} times each, with one digit; "
        f"{two.examples}, {two.passes} times each, with two)",
    )
    add_run_options(parser, "addition-DIGITS")
    parser.set_defaults(run=_text, command="text", device="cpu")


def _text(args: argparse.Namespace) -> int:
    args = run_arguments(args)
    lesson = LESSONS[args.digits]
    args.timesteps = args.timesteps or lesson.timesteps
    args.examples = args.examples or lesson.examples
    th.set_num_threads(1)

    numbers = {"digits": args.digits, "n_test": lesson.n_test}
    training = ArithmeticTask(**numbers, split="train" if lesson.n_test else "all")
    exam = Exam(ArithmeticTask(**numbers, split="test" if lesson.n_test else "all"))
    # One token more than the longest answer with its end token, so that the policy has to learn when to stop
    env = VerifierTextVecEnv(N_ENVS, seed=args.seed, task=training, max_answer_tokens=args.digits + 3)
    curve = AnswersCurve(exam, args.timesteps / _N_POINTS)
    run = Run(args, f"sums of {'one digit' if args.digits == 1 else f'{args.digits} digits'}", curve)
    model = _begin(run, env, exam) if args.resume is None else run.resumed_model(env)
    run.announce(model, "TokenPolicy")
    run.learn(model)
    env.close()
    # Saved before the answers are shown: a later Ctrl-C loses only those
    run.save(model, right_answers=curve.points)
    after = exam.show(_policy(model), "After training")
    curve.points.append((run.steps, after))
    run.write_config(evaluation={**run.config["evaluation"], "right_after": after})
    _save_curve(args.output / "curve.png", run.title, curve.points)
    before = run.config["evaluation"]["right_before"]
    return run.finish([("Right answers", f"{before:.1%} before, {after:.1%} after")], unit="tokens")


def _begin(run: Run, env: VerifierTextVecEnv, exam: Exam) -> GRPO:
    args, lesson = run.args, LESSONS[run.args.digits]
    training: Any = env.rules.task
    try:
        examples = training.worked_examples(args.examples, seed=args.seed)
    except ValueError as error:
        raise UsageError(f"--examples {args.examples}: {error}") from error
    asked_for = _preset(args, env) | parse_settings(ALGORITHMS[args.algo], args.set)
    for_sums = {**lesson.settings, "learning_rate": LinearSchedule(lesson.learning_rate, 0.0, 1.0), "policy_kwargs": NETWORK}
    settings: dict[str, Any] = SETTINGS | for_sums | asked_for
    sampler = None if settings.get("unrelated_starts") is True else HardPrompts(training.n_items)
    model = run.make_model("TokenPolicy", env, f"addition-{args.digits}", settings, start_sampler=sampler)
    _policy(model).pretrain(examples, n_epochs=lesson.passes, batch_size=WARM_START_BATCH)
    before = exam.show(_policy(model), f"After {len(examples)} worked examples, {lesson.passes} times each")
    task = {"prompts": training.n_items, "max_answer_tokens": env.rules.max_answer_tokens, "n_envs": N_ENVS}
    run.write_config(task=task, evaluation={"prompts": len(exam), "right_before": before, "right_after": None})
    return model


def _policy(model: GRPO) -> TokenPolicy:
    assert isinstance(model.policy, TokenPolicy)
    return model.policy


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
