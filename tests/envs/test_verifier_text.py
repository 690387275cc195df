from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as sb3_check_env
from toy_envs import Numbered

from sb3_grpo.envs import (
    ArithmeticTask,
    CharTokenizer,
    GuessNumberTask,
    Item,
    PairsTask,
    Task,
    VerifierError,
    VerifierTextEnv,
    VerifierTextVecEnv,
)
from sb3_grpo.starts.starts import StartMismatchError
from sb3_grpo.text.tokens import PAD, TokenSpace

ENV_ID = "sb3_grpo:sb3_grpo/VerifierText-v0"
EOS = "."  # in the texts that these tests write


def write(env: gym.Env, text: str) -> list[tuple[Any, ...]]:
    """Take the steps that write a text."""
    tokenizer = env.unwrapped.rules.tokenizer  # type: ignore[attr-defined]
    return [env.step(tokenizer.eos_id if character == EOS else tokenizer.encode(character)[0]) for character in text]


def text_of(env: Any, observation: np.ndarray) -> str:
    tokenizer = env.unwrapped.rules.tokenizer
    return "".join(EOS if token == tokenizer.eos_id else tokenizer.decode([token]) for token in observation if token != PAD)


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"task": "capitals", "max_answer_tokens": 13},
        {"task": "guess_number"},
        {"task": "arithmetic", "task_kwargs": {"digits": 2, "operations": "+-"}, "reward_wrong": -1.0},
    ],
)
@pytest.mark.filterwarnings("error")
@pytest.mark.filterwarnings("ignore:.*not normalized|.*symmetric")
def test_both_checkers_are_content(kwargs: dict[str, Any]) -> None:
    env = gym.make(ENV_ID, render_mode="ansi", **kwargs)
    check_env(env.unwrapped)
    sb3_check_env(env.unwrapped)


def test_a_right_answer() -> None:
    env = gym.make(ENV_ID, task="arithmetic", task_kwargs={"digits": 1})
    observation, info = env.reset(options={"item": 34})
    assert info == {"prompt": "3+4=", "item": 34}
    assert isinstance(env.observation_space, TokenSpace)
    assert env.observation_space.shape == (4 + 3,) and env.observation_space.dtype == np.int64
    # Digits, +, = and the end
    assert env.action_space == gym.spaces.Discrete(13)
    assert observation.tolist() == [3, 10, 4, 11, PAD, PAD, PAD]
    first, last = write(env, "7.")
    assert first[0].tolist() == [3, 10, 4, 11, 7, PAD, PAD]
    assert first[1:] == (0.0, False, False, {})
    assert last[0].tolist() == [3, 10, 4, 11, 7, 12, PAD]
    assert last[1:4] == (1.0, True, False)
    expected = {"prompt": "3+4=", "item": 34, "answer": "7", "reference": "7", "verdict": 1.0, "is_success": True}
    assert last[4] == expected
    with pytest.raises(gym.error.ResetNeeded, match="has ended"):
        env.step(0)


@pytest.mark.parametrize(("text", "answer"), [("8.", "8"), (".", ""), ("=7.", "=7"), ("77.", "77")])
def test_wrong_answers(text: str, answer: str) -> None:
    env = gym.make(ENV_ID, reward_correct=1.0, reward_wrong=-1.0)
    env.reset(options={"item": 34})
    *before, last = write(env, text)
    assert all(step[1:4] == (0.0, False, False) for step in before)
    assert last[1:4] == (-1.0, True, False)
    assert (last[4]["answer"], last[4]["verdict"], last[4]["is_success"]) == (answer, 0.0, False)


class Returns(Task):
    """Its item is what it is given, or made from that."""

    def __init__(self, item: Any, n_items: int | None = 2):
        self._item, self.n_items = item, n_items

    def item(self, index: int) -> Any:
        return self._item() if callable(self._item) else self._item


def no_end(eos_id: Any) -> Any:
    return SimpleNamespace(vocab_size=3, eos_id=eos_id, encode=list, decode=str)


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"task": "arithmetics"}, ValueError, "did you mean 'arithmetic'"),
        ({"task": Returns(("a", "b"))}, TypeError, r"Returns have to be of the class Item.*got \('a', 'b'\)"),
        ({"task": Returns(lambda: Item("a", 7))}, TypeError, "An Item has two texts.*got 'a' and 7"),
        ({"task": Returns(Item("a", "b"), n_items=0)}, ValueError, "Returns has n_items=0"),
        ({"verifier": "maths"}, ValueError, "verifier='maths' has to be"),
        ({"tokenizer": object()}, TypeError, "tokenizer=object has no vocab_size, eos_id"),
        ({"tokenizer": no_end(None)}, ValueError, "eos_id=None: no answer"),
        ({"tokenizer": no_end(3)}, ValueError, "from 0 to vocab_size - 1"),
        ({"tokenizer": "missing.json"}, FileNotFoundError, "no file 'missing.json'"),
        ({"max_answer_tokens": 0}, ValueError, "max_answer_tokens must be at least 1, .*got 0"),
        ({"max_prompt_tokens": 1.5}, ValueError, "max_prompt_tokens must be a whole number"),
        ({"render_mode": "human"}, TypeError, "render_mode='human' has to be"),
        ({"verifier_timeout": -1}, ValueError, "verifier_timeout must be positive, got -1"),
        ({"on_verifier_error": "warn"}, ValueError, "on_verifier_error='warn'"),
        ({"max_tokens": 3}, TypeError, "max_tokens"),
        ({"reward_correct": float("nan")}, ValueError, "reward_correct must be a finite number, got nan"),
        ({"reward_wrong": "0"}, ValueError, "reward_wrong must be a finite number, got '0'"),
        ({"reward_wrong": 1}, ValueError, "has to be greater than reward_wrong=1"),
        ({"success_score": 1.5}, ValueError, r"success_score=1\.5 has to be above 0 and at most 1"),
    ],
)
def test_wrong_arguments_are_named(kwargs: dict[str, Any], error: type[Exception], message: str) -> None:
    if error is FileNotFoundError:
        pytest.importorskip("tokenizers")
    with pytest.raises(error, match=message):
        VerifierTextEnv(**kwargs)


def test_prompts_have_to_fit() -> None:
    pairs = [("a", "b"), ("aaa", "b")]
    VerifierTextEnv(pairs, max_prompt_tokens=3)
    for task in (pairs, iter(pairs), [{"prompt": prompt, "answer": answer} for prompt, answer in pairs]):
        with pytest.raises(ValueError, match=r"item 1 has 3 tokens.*max_prompt_tokens=2. Prompt: 'aaa'"):
            VerifierTextVecEnv(1, task=task, max_prompt_tokens=2)
    with pytest.raises(ValueError, match=r"item 0 has 3 tokens.*max_prompt_tokens=2. Prompt: 'aaa'"):
        VerifierTextEnv(Returns(Item("aaa", "b")), max_prompt_tokens=2)
    # All that the agent reads counts
    with pytest.raises(ValueError, match="item 1 has 6 tokens"):
        VerifierTextEnv(pairs, tokenizer=CharTokenizer("ab\n"), examples=[("a", "b")], max_prompt_tokens=5)
    with pytest.warns(UserWarning, match="reference of item 1 has 4 tokens with its end.*max_answer_tokens=3"):
        VerifierTextEnv([("a", "b"), ("a", "bbb")], max_answer_tokens=3)


def test_references_have_to_be_writable() -> None:
    settings: dict[str, Any] = {"task": [("a", "b"), ("b", "c")], "tokenizer": CharTokenizer("ab"), "max_answer_tokens": 2}
    for verifier in (None, "exact"):
        with pytest.raises(ValueError, match=r"No answer equals the reference of item 1, 'c'.*pass a tokenizer"):
            VerifierTextEnv(verifier=verifier, **settings)
    # An own verifier may accept an answer that is written otherwise
    VerifierTextEnv(verifier=lambda answer, reference: 1.0, **settings)
    with pytest.raises(ValueError, match="No answer equals the reference of item 1"):
        VerifierTextEnv(**settings)


class CountingTokenizer(CharTokenizer):
    n_encoded = 0

    def encode(self, text: str) -> list[int]:
        self.n_encoded += 1
        return super().encode(text)


@pytest.mark.parametrize("task", [[("a", "b")] * 2000, PairsTask([("a", "b")] * 2000)])
def test_copies_do_not_check_the_same_references_again(task: Any) -> None:
    tokenizer = CountingTokenizer("ab")
    settings: dict[str, Any] = {"tokenizer": tokenizer, "max_prompt_tokens": 1, "max_answer_tokens": 2}
    VerifierTextEnv(task, **settings)
    first, tokenizer.n_encoded = tokenizer.n_encoded, 0
    VerifierTextEnv(task, **settings)
    assert first - tokenizer.n_encoded == 2000
    # They are checked again where anything else is different
    with pytest.warns(UserWarning, match="reference of item 0 has 2 tokens with its end.*max_answer_tokens=1"):
        VerifierTextEnv(task, **{**settings, "max_answer_tokens": 1})
    with pytest.warns(UserWarning, match="item 0 contains 'b', which is in stop"):
        VerifierTextEnv(task, stop=["b"], **settings)
    with pytest.raises(ValueError, match="No answer equals the reference of item 2000"):
        VerifierTextEnv([("a", "b")] * 2000 + [("a", "c")], **settings)


# Tasks and verifiers


def test_verifiers_of_the_user() -> None:
    # Half of the points for a wrong number
    env = gym.make(ENV_ID, verifier=lambda answer, reference: 1.0 if answer == reference else 0.5 * answer.isdecimal())
    for text, reward in (("7.", 1.0), ("8.", 0.5), ("+.", 0.0)):
        env.reset(options={"item": 34})
        last = write(env, text)[-1]
        assert (last[1], last[4]["verdict"], last[4]["is_success"]) == (reward, reward, reward == 1.0)
    assert env.unwrapped.rules.runner.worker_pid is not None
    env.close()
    assert env.unwrapped.rules.runner.worker_pid is None


def test_own_scores_of_own_tasks_have_a_process_and_the_built_in_ones_have_none() -> None:
    class Longer(Task):
        n_items = 3

        def item(self, index: int) -> Item:
            return Item("?" * (index + 1), "")

        def score(self, answer: str, item: Item) -> float:
            return float(len(answer) > len(item.prompt))

    class Strict(ArithmeticTask):
        def score(self, answer: str, item: Item) -> float:
            return 0.0

    built_in = (("arithmetic", "3.", False), ([("?", "?")], "?.", False))
    for task, answer, expected in ((Longer(), "aaa.", True), (Strict(), "3.", True), *built_in):
        env = gym.make(ENV_ID, task=task, max_answer_tokens=10)
        env.reset(options={"item": 1 if task != [("?", "?")] else 0})
        last = write(env, answer)[-1]
        assert last[2]
        assert (env.unwrapped.rules.runner.worker_pid is not None) is expected
        env.close()


@pytest.mark.parametrize("verifier", [None, "exact", "math", lambda answer, reference: float(answer == reference)])
def test_nothing_is_compared_with_a_reference_that_there_is_not(verifier: Any) -> None:
    if verifier == "math":
        pytest.importorskip("latex2sympy2_extended")
    # Of a list, this is known at the beginning
    rows = [{"prompt": "3+4=", "answer": "7"}, {"prompt": "Write a poem", "solution": "O"}]
    with pytest.raises(ValueError, match=r"no reference .*its other keys are 'solution'.*name its key with answer_key"):
        gym.make(ENV_ID, task=rows, verifier=verifier)
    env = gym.make(ENV_ID, task=Numbered(lambda index: (f"Write a poem ({index})", "")), verifier=verifier)
    env.reset(options={"item": 0})
    with pytest.raises(ValueError, match=r"no reference .*or a Task's own score\(\). Prompt: 'Write a poem"):
        write(env, ".")
    env.close()


# Several turns


def test_hints_are_appended_and_answered() -> None:
    env = gym.make(ENV_ID, task="guess_number", render_mode="ansi")
    env.reset(options={"item": 6})
    steps = write(env, "3.8.")
    assert [text_of(env, step[0]) for step in steps] == ["0-9?3", "0-9?3.H", "0-9?3.H8", "0-9?3.H8.L"]
    assert all(step[1:] == (0.0, False, False, {}) for step in steps)
    last = write(env, "6.")[-1]
    assert last[1:4] == (1.0, True, False)
    assert last[4]["messages"] == ["3", "H", "8", "L", "6"] and last[4]["answer"] == "6"
    assert env.render() == "Task: 0-9?\nAgent: 3\nTask: H\nAgent: 8\nTask: L\nAgent: 6"


def test_several_turns_end_with_the_last_guess_or_the_last_token() -> None:
    env = gym.make(ENV_ID, task=GuessNumberTask(max_turns=2))
    env.reset(options={"item": 6})
    last = write(env, "3.4.")[-1]
    assert last[1:4] == (0.0, True, False) and last[4]["messages"] == ["3", "H", "4"]
    env.reset(options={"item": 6})
    last = write(env, "3.44")[-1]
    assert last[1:4] == (0.0, False, True)
    assert last[4]["messages"] == ["3", "H"] and last[4]["answer"] == "44"


def test_replies_need_another_turn() -> None:
    class Replies(Returns):
        def reply(self, item: Item, messages: list[str]) -> str | None:
            return "?" if len(messages) == 1 else None

    with pytest.raises(ValueError, match=r"Replies has a reply\(item, messages\), but n_turns=1.*write n_turns = 3"):
        VerifierTextEnv(Replies(Item("a", "b")), max_answer_tokens=8)
    # Where it is an argument
    assert VerifierTextEnv("guess_number", task_kwargs={"max_turns": 1}).rules.task.n_turns == 1


def failing_replies() -> Task:
    """It hangs, raises or says a number, by the answer. A local class, so that its process need not import this file."""

    class Failing(Task):
        n_items, n_turns, max_reply_tokens = 1, 2, 5

        def item(self, index: int) -> Item:
            return Item("?", "b")

        def alphabet(self) -> str:
            return "?bhrn"

        def reply(self, item: Item, messages: list[str]) -> Any:
            while messages[-1] == "h":
                pass
            return {"n": 3, "b": None}[messages[-1]]

    return Failing()


@pytest.mark.parametrize(
    ("answer", "message"), [("h", "did not finish within 3 s"), ("r", "KeyError: 'r'"), ("n", "reply is 3 of type int")]
)
def test_replies_that_fail_are_named_or_count_as_zero(answer: str, message: str) -> None:
    for on_error in ("raise", "zero"):
        env = VerifierTextEnv(failing_replies(), on_verifier_error=on_error, max_answer_tokens=8, verifier_timeout=3.0)
        env.reset()
        if on_error == "raise":
            with pytest.raises(VerifierError, match=f"(?s)reply, which replies to answers, .*{message}.*'\\?'.*'{answer}'"):
                write(env, f"{answer}.")
        else:
            with pytest.warns(UserWarning, match="counts as 0"):
                last = write(env, f"{answer}.")[-1]
            assert last[1:3] == (0.0, True) and message in last[4]["verifier_error"]
        env.reset()
        assert write(env, "b.")[-1][1] == 1.0
        env.close()


# Starts and ends


def test_states_of_other_tasks_are_refused() -> None:
    env, capitals = VerifierTextEnv(), VerifierTextEnv("capitals")
    env.reset(options={"item": 34})
    with pytest.raises(StartMismatchError, match=r"with the prompt '3\+4='.*item 34 is 'What is"):
        capitals.set_state(env.get_state())


@pytest.mark.parametrize("truncate", [True, False])
def test_answers_without_an_end_are_truncated_or_terminated(truncate: bool) -> None:
    env = VerifierTextEnv([("a=", "a")], max_answer_tokens=2, truncate=truncate)
    env.reset()
    assert env.step(0)[2:4] == (False, False)
    assert env.step(0)[1:4] == (0.0, not truncate, truncate)
    copies = VerifierTextVecEnv(1, task=[("a=", "a")], max_answer_tokens=2, truncate=truncate)
    copies.reset()
    copies.step(np.array([0]))
    assert copies.step(np.array([0]))[3][0]["TimeLimit.truncated"] is truncate
