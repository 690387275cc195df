import re
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env, data_equivalence
from stable_baselines3.common.env_checker import check_env as sb3_check_env
from stable_baselines3.common.env_util import make_vec_env
from toy_envs import TINY_TEXT, Numbered

from sb3_grpo.envs import (
    ArithmeticTask,
    CharTokenizer,
    GuessNumberTask,
    Item,
    Task,
    VerifierError,
    VerifierTextEnv,
    VerifierTextVecEnv,
)
from sb3_grpo.envs.tasks.base import Scorer
from sb3_grpo.grpo import GRPO
from sb3_grpo.starts.start_queue import StartQueue
from sb3_grpo.starts.starts import SeedStart, StartMismatchError
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


def test_an_answer_without_an_end_is_cut_off_and_wrong() -> None:
    env = gym.make(ENV_ID, max_answer_tokens=2, reward_wrong=-0.5, verifier=lambda answer, reference: 1.0)
    env.reset(options={"item": 9 * 10 + 9})
    last = write(env, "18")[-1]
    assert last[1:4] == (-0.5, False, True)
    assert (last[4]["answer"], last[4]["verdict"], last[4]["is_success"]) == ("18", 0.0, False)
    env.reset(options={"item": 34})
    # The token that ends the answer is the last one that may be given
    assert write(env, "7.")[-1][1:4] == (1.0, True, False)
    env.close()


def test_every_observation_continues_the_one_before() -> None:
    env = gym.make(ENV_ID, task="guess_number")
    rng = np.random.default_rng(0)
    for seed in range(50):
        observation, _ = env.reset(seed=seed)
        ended = False
        while not ended:
            n = int((observation != PAD).sum())
            action = int(rng.choice([rng.integers(env.action_space.n), env.unwrapped.rules.tokenizer.eos_id]))
            following, _, terminated, truncated, _ = env.step(action)
            assert (observation[n:] == PAD).all()
            assert following[: n + 1].tolist() == [*observation[:n], action]
            assert env.observation_space.contains(following)
            observation, ended = following, terminated or truncated


def test_seeds_draw_items_and_options_choose_them() -> None:
    env = gym.make(ENV_ID)
    first = [env.reset(seed=seed)[1]["item"] for seed in range(20)]
    assert first == [env.reset(seed=seed)[1]["item"] for seed in range(20)] and len(set(first)) > 10
    env.reset(seed=0)
    following = [env.reset()[1]["item"] for _ in range(5)]
    env.reset(seed=0)
    assert following == [env.reset()[1]["item"] for _ in range(5)] and len(set(following)) > 1
    assert env.reset(seed=0, options={"item": 12})[1] == {"prompt": "1+2=", "item": 12}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"item": 100}, "no item 100: they are numbered from 0 to 99"),
        ({"item": -1}, "no item -1"),
        ({"item": "3"}, "has to be the number of an item, not str"),
        ({"items": 3}, "the only option is 'item'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gym.make(ENV_ID).reset(options=options)


@pytest.mark.parametrize("action", [13, -1, 0.5, np.zeros(2, np.int64)])
def test_wrong_actions_are_named(action: Any) -> None:
    env = VerifierTextEnv()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="Expected a token from 0 to 12 as the action"):
        env.step(action)
    with pytest.raises(gym.error.ResetNeeded):
        VerifierTextEnv().step(0)


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
    ],
)
def test_wrong_arguments_are_named(kwargs: dict[str, Any], error: type[Exception], message: str) -> None:
    if error is FileNotFoundError:
        pytest.importorskip("tokenizers")
    with pytest.raises(error, match=message):
        VerifierTextEnv(**kwargs)


def test_prompts_have_to_fit() -> None:
    env = VerifierTextEnv([("a", "b"), ("aaa", "b")], max_prompt_tokens=2)
    env.reset(options={"item": 0})
    with pytest.raises(ValueError, match=r"item 1 has 3 tokens.*max_prompt_tokens=2. Prompt: 'aaa'"):
        env.reset(options={"item": 1})
    with pytest.raises(ValueError, match=r"'c' in 'abc' is not in the alphabet 'ab'.*tokenizer=CharTokenizer"):
        VerifierTextEnv([("abc", "b")], tokenizer=CharTokenizer("ab"))


@pytest.mark.parametrize(("shift", "ids"), [(2, "from 3 to 3"), (-1, "from -1 to -1")])
def test_a_tokenizer_with_ids_that_are_not_in_its_vocabulary_is_named(shift: int, ids: str) -> None:
    class Shifted(CharTokenizer):
        def encode(self, text: str) -> list[int]:
            return [token + shift for token in super().encode(text)]

    env = VerifierTextEnv([("b" if shift > 0 else "a", "b")], tokenizer=Shifted("ab"), max_prompt_tokens=1)
    with pytest.raises(ValueError, match=rf"Shifted.* item 0 with ids {ids}, but vocab_size=3"):
        env.reset()


class Syllables(CharTokenizer):
    """Two letters are one token, any other character is one, too."""

    n_encoded = 0

    def encode(self, text: str) -> list[int]:
        self.n_encoded += 1
        return [0] * len(re.findall("[a-z]{2}|.", text))


@pytest.mark.filterwarnings("error")
def test_all_pairs_are_looked_through_for_the_longest() -> None:
    # The longest text is not the one with the most tokens
    pairs = [(f"{index:05d}", "x" * (1 + index % 9)) for index in range(20_000)]
    pairs[19_000], pairs[19_001] = ("z" * 300, "1"), ("1" * 201, "1")
    pairs[19_002], pairs[19_003] = ("1", "z" * 90), ("1", "1" * 70)
    rules = VerifierTextEnv(pairs).rules
    assert (rules.max_prompt_tokens, rules.max_answer_tokens) == (300, 90 + 1)
    tokenizer = Syllables("a")
    rules = VerifierTextEnv(pairs, tokenizer=tokenizer).rules
    assert (rules.max_prompt_tokens, rules.max_answer_tokens) == (201, 70 + 1)
    assert tokenizer.n_encoded < 11_000, "all others have fewer characters than that"
    letters = ["".join(chr(97 + index // 26**place % 26) for place in range(4)) + "x" * 16 for index in range(12_000)]
    pairs = [*((text, "1") for text in letters), ("1" * 15, "1")]
    assert VerifierTextEnv(pairs, tokenizer=Syllables("a")).rules.max_prompt_tokens == 15


def test_limits_that_are_guessed_are_named() -> None:
    def question(index: int) -> tuple[str, str]:
        return f"{index}?", str(index)

    for kwargs, guess in (
        ({}, "max_prompt_tokens=128, max_answer_tokens=64"),
        ({"max_answer_tokens": 9}, r"Guessed: max_prompt_tokens=128\."),
        ({"max_prompt_tokens": 9, "task": Numbered(question, 10_001)}, r"Guessed: max_answer_tokens=64\."),
    ):
        with pytest.warns(UserWarning, match=f"Numbered has too many items .*{guess}"):
            VerifierTextEnv(**{"task": Numbered(question), **kwargs})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        VerifierTextEnv(Numbered(question), max_prompt_tokens=9, max_answer_tokens=9)
        assert VerifierTextEnv(Numbered(question, 1000)).rules.length == 4 + 4


def test_references_that_do_not_fit_are_named() -> None:
    env = VerifierTextEnv([("a", "bbb"), ("b", "aaaa"), ("c", "aaaaa")], max_answer_tokens=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env.reset(options={"item": 0})
    with pytest.warns(UserWarning, match="reference of item 1 has 5 tokens .* max_answer_tokens=4.*Prompt: 'b'"):
        env.reset(options={"item": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env.reset(options={"item": 2})
        # The verifier may take something that can be written
        for limits in ({"max_answer_tokens": 1}, {"max_prompt_tokens": 1, "max_answer_tokens": 1}):
            VerifierTextEnv([("a", "?")], tokenizer=CharTokenizer("a"), **limits).reset()


# Tasks and verifiers


def test_every_kind_of_task(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text('{"prompt": "1+1", "answer": 2}\n')
    for task in ([("1+1", "2")], str(path), path, Numbered(lambda index: ("1+1", "2"))):
        env = gym.make(ENV_ID, task=task)
        env.reset(options={"item": 0})
        assert write(env, "2.")[-1][1] == 1.0
    # The last task has no end
    assert env.observation_space.shape == (128 + 64,)
    assert env.reset(seed=3)[1]["item"] > 100
    assert env.reset(options={"item": 10**9})[1]["item"] == 10**9


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

    for task, answer, expected in ((Longer(), "aaa.", True), ("arithmetic", "3.", False), ([("?", "?")], "?.", False)):
        env = gym.make(ENV_ID, task=task, max_answer_tokens=10)
        env.reset(options={"item": 1 if task != [("?", "?")] else 0})
        last = write(env, answer)[-1]
        assert last[2]
        assert (env.unwrapped.rules.runner.worker_pid is not None) is expected
        env.close()


def think_about(answer: str) -> None:
    time.sleep(3.0 * (answer == "9"))


class Patient(Task):
    def score(self, answer: str, item: Item) -> float:
        think_about(answer)
        return float(answer == item.answer)


class PatientArithmetic(Patient, ArithmeticTask):
    pass


class PatientGuess(GuessNumberTask):
    def reply(self, item: Item, messages: list[str]) -> str | None:
        think_about(messages[-1])
        return None


class PatientScorer(ArithmeticTask):
    def scorer(self) -> Scorer:
        return Scorer(PatientArithmetic().score, lambda item: item)


class PatientMixture(GuessNumberTask, Patient):
    """The first is trusted, but the score is that of the second."""


@pytest.mark.parametrize("task", [PatientArithmetic(), PatientGuess(), PatientScorer(), PatientMixture(max_turns=1)])
def test_what_subclasses_of_trusted_tasks_replace_has_a_process_and_a_time_limit(task: Task) -> None:
    env = gym.make(ENV_ID, task=task, verifier_timeout=0.5, on_verifier_error="zero")
    env.reset(options={"item": 3})
    assert write(env, "3.")[-1][1] == 1.0
    env.reset(options={"item": 3})
    with pytest.warns(UserWarning, match="did not finish within 0.5 s"):
        assert write(env, "9.")[-1][1:3] == (0.0, True)
    env.close()


def test_subclasses_of_trusted_tasks_can_say_so_themselves() -> None:
    class Generous(ArithmeticTask):
        trusted = True

        def score(self, answer: str, item: Item) -> float:
            return 1.0

    class Renamed(Generous):
        """Nothing is replaced."""

    for task, needs_process in ((Renamed(), False), (type("Distrusted", (Renamed,), {"trusted": False})(), True)):
        env = gym.make(ENV_ID, task=task)
        env.reset()
        assert write(env, ".")[-1][1] == 1.0
        assert (env.unwrapped.rules.runner.worker_pid is not None) is needs_process
        env.close()


def test_verifiers_by_name() -> None:
    pytest.importorskip("math_verify")
    questions = [("x", "0.5")]
    for verifier, reward in (("math", 1.0), ("exact", 0.0), (None, 0.0)):
        env = gym.make(ENV_ID, task=questions, tokenizer=CharTokenizer("x0.5/12"), verifier=verifier, max_answer_tokens=4)
        env.reset()
        tokenizer = env.unwrapped.rules.tokenizer
        for token in [*tokenizer.encode("1/2"), tokenizer.eos_id]:
            last = env.step(token)
        assert last[1] == reward and last[2]
        env.close()


@pytest.mark.parametrize("verifier", [None, "exact", "math", lambda answer, reference: float(answer == reference)])
def test_nothing_is_compared_with_a_reference_that_there_is_not(verifier: Any) -> None:
    if verifier == "math":
        pytest.importorskip("math_verify")
    for task in ([("Write a poem", ""), ("3+4=", "7")], Numbered(lambda index: (f"Write a poem ({index})", ""))):
        env = gym.make(ENV_ID, task=task, verifier=verifier, on_verifier_error="zero")
        env.reset(options={"item": 0})
        with pytest.raises(ValueError, match=r"no reference .*whose own score\(\) needs none. Prompt: 'Write a poem"):
            write(env, ".")
        env.close()


def test_data_sets_without_references_have_their_own_verifier() -> None:
    pytest.importorskip("reasoning_gym")
    env = gym.make(ENV_ID, task="reasoning_gym:graph_color")
    env.reset(options={"item": 0})
    assert write(env, ".")[-1][1] < 1.0
    env.close()
    env = gym.make(ENV_ID, task="reasoning_gym:graph_color", verifier="exact")
    env.reset(options={"item": 0})
    with pytest.raises(ValueError, match=r"no reference .*leave out verifier="):
        write(env, ".")
    # The empty text is the right answer to some of these
    env = gym.make(ENV_ID, task="reasoning_gym:ab", verifier="exact")
    empty = next(index for index in range(300) if env.unwrapped.rules.task.item(index).answer == "")
    env.reset(options={"item": empty})
    assert write(env, ".")[-1][1] == 1.0


def test_reasoning_gym() -> None:
    pytest.importorskip("reasoning_gym")
    env = gym.make(ENV_ID, task="reasoning_gym:basic_arithmetic", task_kwargs={"max_terms": 2, "max_digits": 1})
    _, info = env.reset(seed=0)
    item = env.unwrapped.rules.task.item(info["item"])
    assert info["prompt"] == item.prompt
    last = write(env, item.answer + EOS)[-1]
    assert last[1] == 1.0 and last[4]["reference"] == item.answer
    # Its code is not ours, and its process needs nothing of this package
    assert env.unwrapped.rules.runner.worker_pid is not None
    env.close()


def bad_verifier() -> Callable[[str, str], float]:
    def verifier(answer: str, reference: str) -> float:
        if answer == "8":
            raise ValueError("eight")
        while answer == "9":
            pass
        return float("nan") if answer == "6" else 1.0

    return verifier


@pytest.mark.parametrize(("digit", "message"), [("8", "ValueError: eight"), ("9", "within 0.5 s"), ("6", "nan")])
def test_failures_of_the_verifier(digit: str, message: str) -> None:
    kwargs: dict[str, Any] = {"verifier": bad_verifier(), "verifier_timeout": 0.5}
    env = gym.make(ENV_ID, **kwargs)
    env.reset(options={"item": 34})
    with pytest.raises(VerifierError, match=f"(?s){message}.*'3\\+4='.*'{digit}'.*on_verifier_error"):
        write(env, f"{digit}.")
    env.close()

    env = gym.make(ENV_ID, on_verifier_error="zero", reward_wrong=-1.0, **kwargs)
    env.reset(options={"item": 34})
    with pytest.warns(UserWarning, match="counts as 0"):
        last = write(env, f"{digit}.")[-1]
    assert last[1:4] == (-1.0, True, False)
    assert message in last[4]["verifier_error"] and not last[4]["is_success"]
    env.reset(options={"item": 34})
    assert "verifier_error" not in write(env, "7.")[-1][4]
    assert env.unwrapped.verifier_errors == 1
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "answer", "message"),
    [
        ("coin_flip", "1e400", "OverflowError"),
        ("simple_integration", "(X+1)**(X+1)*sin(X+cos(X))**3*tan(X)*exp(sqrt(X))+log(sin(X))/(1+tan(X**2))", "within 2 s"),
    ],
)
def test_answers_that_are_too_hard_for_reasoning_gym_are_wrong(name: str, answer: str, message: str) -> None:
    pytest.importorskip("reasoning_gym")
    settings: dict[str, Any] = {"task": f"reasoning_gym:{name}", "task_kwargs": {"size": 1}, "verifier_timeout": 2.0}
    for on_error in (None, "raise"):
        env = VerifierTextEnv(on_verifier_error=on_error, max_answer_tokens=100, **settings)
        item = env.rules.task.item(0)
        text = answer.replace("X", item.metadata["entry"]["metadata"].get("variable", ""))
        env.reset()
        if on_error is None:
            with pytest.warns(UserWarning, match=f"(?s)verifier reasoning_gym:{name} failed.*{message}.*counts as 0"):
                last = write(env, text + EOS)[-1]
            assert last[1:3] == (0, True) and message in last[4]["verifier_error"] and env.verifier_errors == 1
            env.reset()
            # Not with write(), to which a point is the end
            for token in [*env.rules.tokenizer.encode(item.answer), env.rules.tokenizer.eos_id]:
                last = env.step(token)
            assert last[1] == 1 and env.verifier_errors == 1
        else:
            with pytest.raises(VerifierError, match=f"(?s)verifier reasoning_gym:{name} failed.*{message}"):
                write(env, text + EOS)
        env.close()


def test_failures_of_a_reply_are_raised_where_those_of_our_verifier_are_not() -> None:
    pytest.importorskip("math_verify")

    class Mute(Task):
        n_items = 1

        def item(self, index: int) -> Item:
            return Item("?", "$$")

        def reply(self, item: Item, messages: list[str]) -> str | None:
            if messages == ["1"]:
                raise KeyError("no reply")
            return None

    env = VerifierTextEnv(Mute(), verifier="math", max_answer_tokens=3)
    env.reset()
    with pytest.warns(UserWarning, match=r"(?s)verifier math failed.*finds nothing in the reference '\$\$'"):
        assert write(env, "2.")[-1][1] == 0
    env.reset()
    with pytest.raises(VerifierError, match="no reply"):
        write(env, "1.")
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


@pytest.mark.parametrize("limit", [{"max_reply_tokens": 0}, {"max_answer_tokens": 2}])
def test_no_room_for_a_reply_or_for_an_answer_to_it(limit: dict[str, int]) -> None:
    env = gym.make(ENV_ID, task="guess_number", **limit)
    env.reset(options={"item": 6})
    last = write(env, "3.")[-1]
    assert last[1:4] == (0.0, False, True)
    assert text_of(env, last[0]) == "0-9?3." and last[4]["messages"] == ["3", "H"] and last[4]["answer"] == ""


def make_patient_task(**attributes: Any) -> Task:
    """Says yes to a, is silent at b, and hangs, raises or says a number at other answers."""

    class Patient(Task):
        n_items = 1
        max_reply_tokens = 5

        def item(self, index: int) -> Item:
            return Item("?", "b", {"limit": 2})

        def alphabet(self) -> str:
            return "?abhrny"

        def reply(self, item: Item, messages: list[str]) -> Any:
            while messages[-1] == "h":
                pass
            return {"a": "y" * item.metadata["limit"], "b": None, "n": 3}[messages[-1]]

    return type("Patient", (Patient,), attributes)()


@pytest.mark.slow
def test_replies_have_the_process_and_the_time_limit_of_the_verifier() -> None:
    settings: dict[str, Any] = {"max_answer_tokens": 8, "verifier_timeout": 0.5}
    env = gym.make(ENV_ID, task=make_patient_task(), **settings)
    env.reset()
    assert text_of(env, write(env, "a.")[-1][0]) == "?a.yy"
    assert write(env, "b.")[-1][1:4] == (1.0, True, False)
    assert env.unwrapped.rules.runner.worker_pid is not None
    for answer, message in (
        ("h", "did not finish within 0.5 s"),
        ("r", "KeyError: 'r'"),
        ("n", "reply is 3 of type int, not a"),
    ):
        env.reset()
        with pytest.raises(VerifierError, match=f"(?s)reply, which replies to answers, .*{message}.*'\\?'.*'{answer}'"):
            write(env, f"{answer}.")
    env.close()

    env = gym.make(ENV_ID, task=make_patient_task(), on_verifier_error="zero", reward_wrong=-1.0, **settings)
    env.reset()
    with pytest.warns(UserWarning, match="counts as 0"):
        last = write(env, "a.r.")[-1]
    assert last[1:4] == (-1.0, True, False)
    assert "KeyError" in last[4]["verifier_error"] and last[4]["messages"] == ["a", "yy", "r"]
    assert env.unwrapped.verifier_errors == 1
    env.close()


def test_replies_of_trusted_tasks_have_no_process() -> None:
    env = gym.make(ENV_ID, task=make_patient_task(trusted=True), max_answer_tokens=8)
    env.reset()
    assert write(env, "a.b.")[-1][1] == 1.0
    assert env.unwrapped.rules.runner.worker_pid is None
    env.reset()
    with pytest.raises(VerifierError, match="KeyError: 'r'") as raised:
        write(env, "r.")
    assert isinstance(raised.value.__cause__, KeyError)


def test_replies_to_several_copies() -> None:
    copies = VerifierTextVecEnv(4, task=make_patient_task(), max_answer_tokens=8, on_verifier_error="zero")
    copies.reset()
    copies.step(np.array(copies.rules.tokenizer.encode("abra")))
    with pytest.warns(UserWarning, match="counts as 0"):
        observations, rewards, dones, infos = copies.step(np.full(4, copies.rules.tokenizer.eos_id))
    assert rewards.tolist() == [0, 1, 0, 0] and dones.tolist() == [False, True, True, False]
    assert [text_of(copies, row) for row in observations] == ["?a.yy", "?", "?", "?a.yy"]
    assert "KeyError" in infos[2]["verifier_error"] and "verifier_error" not in infos[1]
    copies.close()


def test_rendering() -> None:
    env = VerifierTextEnv(render_mode="ansi")
    env.reset(options={"item": 34})
    write(env, "12")
    assert env.render() == "Task: 3+4=\nAgent: 12"


# Starts, states and training


def test_groups_begin_alike() -> None:
    envs = [StartQueue(gym.make(ENV_ID)) for _ in range(2)]
    for env in envs:
        env.reset(seed=5)
        env.step(1)
        env.queue_start(7, SeedStart(3))
        env.queue_start(8, SeedStart(3, {"item": 12}))
    expected = gym.make(ENV_ID).reset(seed=3)[0]
    for env in envs:
        observation, info = env.reset()
        assert observation.tolist() == expected.tolist() and info["group_start"] == 7
        assert env.reset()[1] == {"prompt": "1+2=", "item": 12, "group_start": 8}


@pytest.mark.parametrize("written", ["", "3", "3.", "3.8", "3.8.6"])
def test_snapshots_in_the_middle_of_an_answer(written: str) -> None:
    env, other = (StartQueue(gym.make(ENV_ID, task="guess_number")) for _ in range(2))
    observation, _ = env.reset(options={"item": 6})
    for step in write(env, written):
        observation = step[0]
    snapshot = env.capture_start()
    rest = write(env, "4.")
    following = env.reset()[1]["item"]
    other.reset(seed=1)
    for _ in range(2):
        other.queue_start(1, snapshot)
        begun, _ = other.reset()
        assert begun.tolist() == observation.tolist()
        assert data_equivalence(write(other, "4."), rest, exact=True)
        # The generator belongs to the state
        assert other.reset()[1]["item"] == following


def test_states_of_other_tasks_are_refused() -> None:
    env, capitals = VerifierTextEnv(), VerifierTextEnv("capitals")
    env.reset(options={"item": 34})
    with pytest.raises(StartMismatchError, match=r"with the prompt '3\+4='.*item 34 is 'What is"):
        capitals.set_state(env.get_state())


def test_states_of_other_tokenizers_are_refused() -> None:
    env, other = VerifierTextEnv(), VerifierTextEnv(tokenizer=CharTokenizer("=+9876543210"))
    env.reset(options={"item": 34})
    write(env, "7")
    with pytest.raises(StartMismatchError, match="another task or tokenizer"):
        other.set_state(env.get_state())


@pytest.mark.filterwarnings("ignore:The reference of item")
@pytest.mark.parametrize("room", [1, 2, 3, 4])
@pytest.mark.parametrize("task", ["arithmetic", "guess_number"])
def test_states_need_room_for_another_token(task: str, room: int) -> None:
    env, other = VerifierTextEnv(task, max_answer_tokens=5), VerifierTextEnv(task, max_answer_tokens=room)
    env.reset(seed=0)
    write(env, "111")
    if room <= 3:
        with pytest.raises(StartMismatchError, match=r"the agent wrote 3.*the agent writes"):
            other.set_state(env.get_state())
    else:
        other.set_state(env.get_state())
        assert other.step(1)[3], "the last token"


@pytest.mark.filterwarnings("ignore:.*render_mode")
@pytest.mark.parametrize("settings", [{}, {"task": "guess_number"}])
def test_training(settings: dict[str, Any]) -> None:
    env = make_vec_env(ENV_ID, n_envs=4, env_kwargs=settings)
    model = GRPO("TokenPolicy", env, group_size=4, n_groups=2, policy_kwargs=TINY_TEXT, device="cpu", seed=0).learn(200)
    assert model.num_timesteps >= 200
    assert model.ep_success_buffer is not None and len(model.ep_success_buffer) > 10
    GRPO("TokenPolicy", gym.make(ENV_ID, **settings), group_size=4, n_groups=2, policy_kwargs=TINY_TEXT, device="cpu").learn(
        50
    )


def test_training_learns_one_answer() -> None:
    env = gym.make(ENV_ID, task=[("?", "a")], max_answer_tokens=2)
    model = GRPO(
        "TokenPolicy", env, group_size=16, n_groups=4, learning_rate=0.02, policy_kwargs=TINY_TEXT, device="cpu", seed=0
    )
    model.learn(3_000)
    assert model.ep_success_buffer is not None
    assert np.mean(list(model.ep_success_buffer)[-30:]) > 0.8


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
