import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sb3_grpo.envs import (
    ArithmeticTask,
    CalculatorTask,
    CapitalsTask,
    CharTokenizer,
    GuessNumberTask,
    HuggingFaceTokenizer,
    Item,
    PairsTask,
    Task,
    VerifierTextEnv,
    VerifierTextVecEnv,
    is_equivalent,
    make_task,
    math_equivalent,
)
from sb3_grpo.text.tokens import PAD


def all_items(task: Task) -> list[Item]:
    assert task.n_items is not None
    return [task.item(index) for index in range(task.n_items)]


# Tokenizers


def test_characters_are_numbered_in_order_and_the_end_is_last() -> None:
    tokenizer = CharTokenizer("ab=")
    assert (tokenizer.vocab_size, tokenizer.eos_id) == (4, 3)
    assert tokenizer.encode("b=a") == [1, 2, 0]
    assert tokenizer.decode([1, 2, 0, 3, 1, PAD]) == "b=a"
    assert tokenizer.decode(np.array([0, PAD, PAD])) == "a"


@pytest.fixture(scope="module")
def word_tokenizer() -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"one": 0, "two": 1, "</s>": 2, "<unk>": 9}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.enable_padding(length=7)
    tokenizer.enable_truncation(2)
    return tokenizer


def test_hugging_face_tokenizers_neither_pad_nor_cut(word_tokenizer: Any, tmp_path: Path) -> None:
    word_tokenizer.save(str(tmp_path / "tokenizer.json"))
    for tokenizer in (HuggingFaceTokenizer(word_tokenizer), HuggingFaceTokenizer(tmp_path / "tokenizer.json")):
        # The ids have a gap
        assert (tokenizer.vocab_size, tokenizer.eos_id) == (10, 2)
        assert tokenizer.encode("one two one") == [0, 1, 0]
        assert tokenizer.decode([0, 1, 2, 1, PAD]) == "one two"
        assert pickle.loads(pickle.dumps(tokenizer)).encode("two") == [1]
        # What has no text would otherwise be no difference
        assert tokenizer.decode([0, 5, 5, 1, 8, 2]) == "one<id 5><id 5>two<id 8>"
    assert len(word_tokenizer.encode("one").ids) == 7


def test_tokenizers_of_transformers(word_tokenizer: Any) -> None:
    transformers = pytest.importorskip("transformers")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=word_tokenizer, eos_token="<unk>")
    assert HuggingFaceTokenizer(fast).eos_id == 9
    assert HuggingFaceTokenizer(fast, eos_token="</s>").eos_id == 2
    # As it is, it is a tokenizer for the environment
    for tokenizer, eos_id in ((fast, 9), (word_tokenizer, 2)):
        env = VerifierTextEnv([("one two", "two")], tokenizer=tokenizer)
        assert env.rules.tokenizer.eos_id == eos_id and env.action_space.n == 10
        assert env.reset()[0].tolist() == [0, 1, PAD, PAD]
        env.step(1)
        assert env.step(eos_id)[1] == 1
    with pytest.raises(TypeError, match="tokenizer=int has no vocab_size"):
        VerifierTextEnv(tokenizer=3)


# Tasks


def test_arithmetic_has_every_pair_once() -> None:
    items = all_items(ArithmeticTask(digits=1))
    assert len({item.prompt for item in items}) == len(items) == 100
    assert Item("3+4=", "7", {"a": 3, "operation": "+", "b": 4}) in items
    assert ArithmeticTask(digits=2).n_items == 10_000
    by_prompt = {item.prompt: item.answer for item in all_items(ArithmeticTask(operations="+-*"))}
    assert len(by_prompt) == 300
    assert (by_prompt["3-9="], by_prompt["7*8="], by_prompt["9+9="]) == ("-6", "56", "18")


def test_splits_are_disjoint_and_complete() -> None:
    def prompts(**kwargs: Any) -> set[str]:
        return {item.prompt for item in all_items(ArithmeticTask(digits=1, **kwargs))}

    train, test = prompts(split="train", n_test=20), prompts(split="test", n_test=20)
    assert len(train) == 80 and len(test) == 20
    assert train | test == prompts()
    assert test != prompts(split="test", n_test=20, seed=1)


def test_worked_examples_are_right_and_different() -> None:
    task = ArithmeticTask(split="train", n_test=50)
    examples = task.worked_examples(50, seed=3)
    assert set(examples) == {(item.prompt, item.answer) for item in all_items(task)}
    assert examples == task.worked_examples(50, seed=3) != task.worked_examples(50, seed=4)
    with pytest.raises(ValueError, match="n=51 worked examples: there are 50 items"):
        task.worked_examples(51)


@pytest.mark.parametrize(
    ("answer", "reference", "expected"),
    [
        (" 7\n", "7", True),
        ("7.0", "+07", True),
        ("-0", "0", True),
        (".5", "0.50", True),
        ("Canberra", "Canberra", True),
        ("canberra", "Canberra", False),
        ("", "0", False),
        ("0.1", "0.10000000000000000001", False),
        ("1e3", "1,000", True),
        ("\uff11\uff12", "12", True),
        ("1,00", "100", False),
        ("1_0", "10", False),
        ("\u0667", "7", False),
        ("nan", "nan", True),
        ("9" * 10_000, "7", False),
    ],
)
def test_equivalence(answer: str, reference: str, expected: bool) -> None:
    assert is_equivalent(answer, reference) is expected


@pytest.mark.parametrize("reference", ["", "$$", "####"])
def test_references_without_mathematics_are_named(reference: str) -> None:
    pytest.importorskip("latex2sympy2_extended")
    with pytest.raises(ValueError, match=f"finds no answer in the reference {re.escape(repr(reference))}.*'exact'"):
        math_equivalent(reference, reference)


def test_capitals() -> None:
    task = make_task("capitals")
    assert isinstance(task, CapitalsTask)
    assert task.item(0) == Item("What is the capital of Australia?", "Canberra")
    items = all_items(task)
    assert len({item.prompt for item in items}) == len(items) >= 40
    assert len({item.answer for item in items}) == len(items)
    for item in items:
        CharTokenizer(task.alphabet()).encode(item.prompt + item.answer)


def test_pairs() -> None:
    task = make_task([("a", "b"), ("c", 7, {"hard": True})])
    assert isinstance(task, PairsTask)
    assert all_items(task) == [Item("a", "b"), Item("c", "7", {"hard": True})]
    assert task.alphabet() == "7abc"
    assert all_items(PairsTask(all_items(task))) == all_items(task)
    assert [item.answer for item in all_items(make_task([("a", np.int64(7)), ("b", np.float32(0.5))]))] == ["7", "0.5"]


def test_jsonl(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text('{"prompt": "1+1", "answer": 2, "level": "easy"}\n\n{"prompt": "ü", "answer": "u"}\n', encoding="utf-8")
    assert all_items(make_task(path)) == [Item("1+1", "2", {"answer": 2, "level": "easy"}), Item("ü", "u", {"answer": "u"})]
    assert make_task(str(path)).n_items == 2
    # Ends of lines to Python, not to JSON
    path.write_text('{"prompt": "a\u2028b\x85c", "answer": "d"}\r\n{"prompt": "e", "answer": "f"}', encoding="utf-8")
    assert all_items(make_task(path)) == [
        Item("a\u2028b\x85c", "d", {"answer": "d"}),
        Item("e", "f", {"answer": "f"}),
    ]
    path.write_text('{"prompt": "ü", "answer": "u"}', encoding="utf-8-sig")
    assert make_task(path).item(0) == Item("ü", "u", {"answer": "u"})
    path.write_text('{"prompt": "ü", "answer": "u"}', encoding="latin-1")
    with pytest.raises(ValueError, match=r"questions.jsonl is not in UTF-8 .*save it with that encoding"):
        make_task(path)
    path.write_text('{"question": "1+1", "solution": "2"}\n')
    assert make_task(path, prompt_key="question", answer_key="solution").item(0).answer == "2"


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "questions.CSV"
    path.write_text('prompt,answer,level\n"1+1, or\n2-0",02,easy\n\nü,u,\n', encoding="utf-8-sig")
    first = Item("1+1, or\n2-0", "02", {"answer": "02", "level": "easy"})
    assert all_items(make_task(str(path))) == [first, Item("ü", "u", {"answer": "u", "level": ""})]
    path.write_text(",prompt,answer\n0,1+1,2\n")
    assert make_task(path).item(0).prompt == "1+1", "an index, as pandas writes it"
    for line in "a,b", "a,b,c,d":
        path.write_text(f"prompt,answer,level\n{line}\n")
        with pytest.raises(ValueError, match=r"questions.CSV, line 2 has not as many values as the first line has names, 3"):
            make_task(path)
    path.write_text("prompt,answer,answer\na,b,c\n")
    with pytest.raises(ValueError, match=r"questions.CSV has 'answer' more than once in its first line"):
        make_task(path)
    path.write_text(f"prompt,answer\na,{'b' * 200_000}\n")
    with pytest.raises(ValueError, match=r"questions.CSV, line 1: field larger than field limit"):
        make_task(path)
    for text in ("", "prompt,answer\n"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"questions.CSV has no rows"):
            make_task(path)
    with pytest.raises(TypeError, match=r"write PairsTask.from_file"):
        PairsTask("questions.csv")


def test_prompts_without_answers() -> None:
    rows = [{"prompt": "Say a", "letter": "a"}, {"prompt": "Say b", "letter": "b"}]
    assert all_items(make_task(rows)) == [Item("Say a", "", {"letter": "a"}), Item("Say b", "", {"letter": "b"})]
    assert all_items(make_task(["Say a", "Say b"])) == [Item("Say a", ""), Item("Say b", "")]
    messages = [{"role": "user", "content": "Say a"}]
    assert all_items(make_task([messages, messages])) == [Item(messages, "")] * 2


def test_a_part_is_held_out() -> None:
    class Lenient(PairsTask):
        pass

    task = Lenient([{"prompt": f"{i}+1", "sum": i + 1} for i in range(10)], answer_key="sum")
    parts = train, test = task.split(3)
    assert (train.n_items, test.n_items) == (7, 3) and {type(part) for part in parts} == {Lenient}
    assert {part.alphabet() for part in parts} == {task.alphabet()}, "a policy reads both"
    items = [item for part in parts for item in all_items(part)]
    assert sorted(items, key=lambda item: int(item.metadata["sum"])) == all_items(task)
    assert all_items(task.split(3)[1]) == all_items(test) != all_items(task.split(3, seed=1)[1])
    for n_test in (0, 10, True, 0.5):
        with pytest.raises(ValueError, match="n_test must be"):
            task.split(n_test)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "line 2 is not a JSON object"),
        ('{"question": "a", "answer": "b"}', "line 2 has no 'prompt', only 'question', 'answer'"),
        ('{"prompt": "a", "answer": null}', "line 2 is not a pair"),
    ],
)
def test_wrong_lines_of_a_file_are_named(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(f'{{"prompt": "a", "answer": "b"}}\n{line}\n')
    with pytest.raises(ValueError, match=message) as caught:
        make_task(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("task", "kwargs", "error", "message"),
    [
        ("arithmetic", {"digits": 0}, ValueError, "digits must be between 1 and 9, got 0"),
        ("arithmetic", {"digits": "2"}, ValueError, "digits must be a whole number, .* write digits=2"),
        ("arithmetic", {"split": "test", "n_test": 2.5}, ValueError, "n_test must be a whole number"),
        ("arithmetic", {"operations": "+/"}, ValueError, r"operations='\+/'"),
        ("arithmetic", {"operations": "++"}, ValueError, "at most once"),
        ("arithmetic", {"split": "validation"}, ValueError, "'all', 'train' or 'test'"),
        ("arithmetic", {"split": "test"}, ValueError, "n_test from 1 to 99, got 0"),
        ("arithmetic", {"digit": 1}, TypeError, r"'arithmetic' does not take task_kwargs={'digit': 1}"),
        ("guess_number", {"max_turns": 0}, ValueError, "max_turns must be"),
        ("arithmetics", {}, ValueError, "no task 'arithmetics', did you mean 'arithmetic'"),
        ("missing.jsonl", {}, FileNotFoundError, r"no file 'missing\.jsonl'"),
        (CapitalsTask(), {"n": 1}, ValueError, "no use for a task that exists"),
        (3, {}, TypeError, "task=3 has to be"),
        ([("a", "b"), ("c",)], {}, ValueError, "Pair 1"),
        ([("a", None)], {}, ValueError, "Pair 0"),
        ([("", "b")], {}, ValueError, "empty prompt"),
        ([], {}, ValueError, "no items"),
    ],
)
def test_wrong_tasks_are_named(task: Any, kwargs: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make_task(task, **kwargs)


def test_guess_number_gives_hints_until_the_last_guess() -> None:
    task = GuessNumberTask(max_turns=3)
    item = task.item(6)
    assert item.answer == "6"
    assert task.reply(item, ["3"]) == "H"
    assert task.reply(item, ["3", "H", "8"]) == "L"
    assert task.reply(item, ["3", "H", "x"]) == "?"
    assert task.reply(item, ["6"]) is None and task.score("6", item) == 1
    assert task.reply(item, ["3", "H", "8", "L", "7"]) is None and task.score("7", item) == 0


@pytest.mark.parametrize(
    ("call", "result"),
    [
        ("calc(12*34)", "408"),
        (" calc( (1+2)*-(3-1)/4 ) ", "-1.5"),
        ("calc(0.1+0.2)", "0.3"),
        ("calc(1/3)", "0.333333"),
        ("calc(99999*99999)", "9999800001"),
        ("calc(12*34", "error"),
        ("calc()", "error"),
        ("calc(1/0)", "error"),
        ("calc(9**9)", "error"),
        ("calc(9//2)", "error"),
        ("calc(1e9)", "error"),
        ("calc(...)", "error"),
        ("calc(abs(3))", "error"),
        ("calc(__import__('os'))", "error"),
        (f"calc({'9' * 21})", "error"),
        (f"calc({'(' * 10_000})", "error"),
    ],
)
def test_calls_of_the_calculator_are_replied_to(call: str, result: str) -> None:
    task = make_task("calculator", max_turns=2)
    item = task.item(1234)
    assert task.reply(item, [call]) == f"{result}\n" and len(f"{result}\n") <= task.max_reply_tokens
    assert task.reply(item, [call, f"{result}\n", call]) is None, "the last answer is no call"


def test_a_calculator_in_the_process_of_the_verifier() -> None:
    task = CalculatorTask(split="train", n_test=100)
    (prompt, conversation), other = task.worked_examples(2)
    assert len({*task.worked_examples(9900)} & {*CalculatorTask(split="test", n_test=100).worked_examples(100)}) == 0
    index = next(index for index in range(9900) if task.item(index).prompt == prompt)
    env = VerifierTextEnv(task, stop=["\n"], examples=[other], render_mode="ansi")
    encode = env.rules.tokenizer.encode

    def write(text: str) -> Any:
        env.reset(options={"item": index})
        for token in encode(text):
            step = env.step(token)
        return step

    call, result, answer = conversation.split("\n")
    observation = write(f"{call}\n")[0]
    assert env.rules.runner.worker_pid is not None
    # What follows the example is what the example shows
    assert env.rules.tokenizer.decode(observation) == f"{other[0]}{other[1]}\n{prompt}{call}\n{result}\n"
    _, reward, terminated, _, info = write(f"{call}\n{answer}\n")
    assert (reward, terminated, info["messages"]) == (1.0, True, [call, f"{result}\n", answer])
    assert write(f"{answer}\n")[1:3] == (1.0, True), "the tool need not be called"
    # As many turns as there may be, and calls as long as they have to be
    *_, info = write(f"calc(9\n{call}\n{answer}\n")
    assert info["messages"] == ["calc(9", "error\n", call, f"{result}\n", answer] and info["is_success"]
    env.close()


def test_reasoning_gym_by_name() -> None:
    pytest.importorskip("reasoning_gym")
    task = make_task("reasoning_gym:basic_arithmetic", max_terms=2)
    assert task.n_items is None
    item = task.item(100_000)
    assert item == task.item(100_000) == make_task("reasoning_gym:basic_arithmetic", max_terms=2).item(100_000)
    assert item != make_task("reasoning_gym:basic_arithmetic", max_terms=2, seed=10**6).item(100_000)
    assert task.score(item.answer, item) == 1 and task.score("", item) == 0
    assert make_task("reasoning_gym:basic_arithmetic", size=7).n_items == 7
    # Any answer will do that has the right properties
    assert make_task("reasoning_gym:graph_color").item(0).answer == ""


def test_items_without_room_are_passed_over_by_all_alike() -> None:
    pytest.importorskip("reasoning_gym")
    settings: dict[str, Any] = {"task": "reasoning_gym:gcd", "max_prompt_tokens": 105}
    env, copies = VerifierTextEnv(**settings), VerifierTextVecEnv(20, seed=0, **settings)
    with pytest.warns(UserWarning, match="passed over: The prompt of item .* max_prompt_tokens=105"):
        prompts = [env.reset(seed=seed)[1]["prompt"] for seed in range(20)]
    with pytest.warns(UserWarning, match="passed over"):
        copies.reset()
    assert [info["prompt"] for info in copies.reset_infos] == prompts
    assert max(map(len, prompts)) <= 105
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="1000 items were drawn, and none of them can be used"):
        VerifierTextEnv(**{**settings, "max_prompt_tokens": 5}).reset()
