import pickle
import re
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_envs import Numbered

from sb3_grpo.envs import (
    ArithmeticTask,
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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: CharTokenizer("ab=").encode("a?"), r"'\?' in 'a\?' is not in the alphabet 'ab='"),
        (lambda: CharTokenizer("ab=").decode([7]), "no token 7: ids are from 0 to 3"),
        (lambda: CharTokenizer("aba"), "'a' more than once"),
        (lambda: CharTokenizer(""), "empty"),
    ],
)
def test_wrong_characters_are_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


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


def test_hugging_face_tokenizers_say_what_is_missing(word_tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="'two words' is not one of the 4 tokens"):
        HuggingFaceTokenizer(word_tokenizer, eos_token="two words")
    with pytest.raises(FileNotFoundError, match=r"'gpt2'.*nothing is downloaded"):
        HuggingFaceTokenizer("gpt2")
    with pytest.raises(TypeError, match="not int"):
        HuggingFaceTokenizer(3)
    word_tokenizer.add_special_tokens(["<eos>"])
    with pytest.raises(ValueError, match="it has </s> and <eos>: pass eos_token"):
        HuggingFaceTokenizer(word_tokenizer)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r'pip install "sb3-grpo\[text\]"'):
        HuggingFaceTokenizer(word_tokenizer)


# Tasks


def test_arithmetic_has_every_pair_once() -> None:
    items = all_items(ArithmeticTask(digits=1))
    assert len({item.prompt for item in items}) == len(items) == 100
    assert Item("3+4=", "7", {"a": 3, "operation": "+", "b": 4}) in items
    assert ArithmeticTask(digits=2).n_items == 10_000
    by_prompt = {item.prompt: item.answer for item in all_items(ArithmeticTask(operations="+-*"))}
    assert len(by_prompt) == 300
    assert (by_prompt["3-9="], by_prompt["7*8="], by_prompt["9+9="]) == ("-6", "56", "18")


def test_arithmetic_without_an_end_in_sight() -> None:
    task = ArithmeticTask(digits=9)
    assert task.n_items == 10**18
    assert task.item(10**18 - 1).prompt == "999999999+999999999="
    assert len(task.worked_examples(5)) == 5


@pytest.mark.parametrize("operations", ["+", "-", "+-*"])
def test_zero_padded_answers_have_one_width(operations: str) -> None:
    items = all_items(ArithmeticTask(operations=operations, zero_pad=True))
    plain = all_items(ArithmeticTask(operations=operations))
    assert {len(item.answer) for item in items} == {2}
    assert [int(item.answer) for item in items] == [int(item.answer) for item in plain]


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
    ("kwargs", "message"),
    [
        ({"digits": 0}, "digits must be between 1 and 9, got 0"),
        ({"digits": "2"}, "digits must be a whole number, .* write digits=2"),
        ({"split": "test", "n_test": 2.5}, "n_test must be a whole number"),
        ({"operations": "+/"}, r"operations='\+/'"),
        ({"operations": "++"}, "at most once"),
        ({"split": "validation"}, "'all', 'train' or 'test'"),
        ({"split": "test"}, "n_test from 1 to 99, got 0"),
    ],
)
def test_wrong_arithmetic_is_named(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_task("arithmetic", **kwargs)


@pytest.mark.parametrize(("zero_pad", "right"), [(False, "7"), (True, "07")])
def test_results_have_to_be_written_like_the_reference(zero_pad: bool, right: str) -> None:
    task = ArithmeticTask(zero_pad=zero_pad)
    item = task.item(34)
    assert [answer for answer in ("7", "07", "007", "7.0", "8") if task.score(answer, item)] == [right]


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
        ("1e3", "1000", False),
        ("1_0", "10", False),
        ("\u0667", "7", False),
        ("nan", "nan", True),
        ("9" * 10_000, "7", False),
    ],
)
def test_equivalence(answer: str, reference: str, expected: bool) -> None:
    assert is_equivalent(answer, reference) is expected


def test_mathematical_equivalence() -> None:
    pytest.importorskip("math_verify")
    assert math_equivalent("1/2", "0.5") and math_equivalent("$x+1$", "$1+x$")
    assert not math_equivalent("1/3", "0.5") and not math_equivalent("9^9^9^9", "7")


@pytest.mark.parametrize(
    ("reference", "right", "wrong"),
    [
        ("72", "so the answer is 72.", "so the answer is 27."),
        ("1,000", "1000", "1"),
        ("She paid $3 for 2 of 48.\n#### 72", "72", "48"),
        ("50%", "0.5", "49%"),
        ("18 dollars", "18", "81"),
        ("\\$18", "18", "81"),
        ("1e-05", "0.00001", "5"),
        ("x**10+1", "$1+x^{10}$", "1"),
        ("A", "A", "\\boxed{B}"),
        ("A", "\\boxed{A}", "B"),
        ("x+1", "x+1", "1"),
        ("x+1", "$1+x$", "$x$"),
        ("$x+1$", "\\boxed{1+x}", "x"),
        ("\\(x+1\\)", "$1+x$", "1"),
        ("y = 2x + 3", "\\boxed{y=2x+3}", "3"),
        ("2\\pi+6", "$6+2\\pi$", "2"),
        ("\\sqrt{2}", "$2^{1/2}$", "2"),
        ("(-\\infty, 2)", "$(-\\infty,2)$", "2"),
        ("(3,5)", "\\boxed{(3,5)}", "5"),
    ],
)
def test_references_of_mathematics_need_no_dollars(reference: str, right: str, wrong: str) -> None:
    pytest.importorskip("math_verify")
    assert math_equivalent(right, reference) and not math_equivalent(wrong, reference)


@pytest.mark.parametrize("reference", ["", "$$", "####"])
def test_references_without_mathematics_are_named(reference: str) -> None:
    pytest.importorskip("math_verify")
    with pytest.raises(ValueError, match=f"finds nothing in the reference {re.escape(repr(reference))}.*'exact'"):
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
    for pairs, where in (
        ([("a", "b"), "cd"], "Pair 1"),
        ([("a", None)], "Pair 0"),
        ([("", "b")], "empty prompt"),
        ([], "no items"),
    ):
        with pytest.raises(ValueError, match=where):
            make_task(pairs)


def test_iterators_of_pairs_are_listed() -> None:
    assert make_task(iter([("a", "b")])).n_items == 1
    task = make_task((str(number), number) for number in range(5))
    assert all_items(task)[4] == Item("4", "4") and task.n_items == 5


def test_items_without_reference_are_no_examples() -> None:
    with pytest.raises(ValueError, match=r"Item 1 has no reference answer.*'c'"):
        make_task([("a", "b"), ("c", "")]).worked_examples(2)
    pytest.importorskip("reasoning_gym")
    with pytest.raises(ValueError, match=r"has no reference answer"):
        make_task("reasoning_gym:graph_color").worked_examples(1)
    # The empty text is the right answer to some
    task = make_task("reasoning_gym:ab", size=200)
    assert ("", True) in {(answer, isinstance(prompt, str)) for prompt, answer in task.worked_examples(200)}


def test_jsonl(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text('{"prompt": "1+1", "answer": 2, "level": "easy"}\n\n{"prompt": "ü", "answer": "u"}\n', encoding="utf-8")
    assert all_items(make_task(path)) == [Item("1+1", "2", {"level": "easy"}), Item("ü", "u")]
    assert make_task(str(path)).n_items == 2
    # Ends of lines to Python, not to JSON
    path.write_text('{"prompt": "a\u2028b\x85c", "answer": "d"}\r\n{"prompt": "e", "answer": "f"}', encoding="utf-8")
    assert all_items(make_task(path)) == [Item("a\u2028b\x85c", "d"), Item("e", "f")]
    path.write_text('{"prompt": "ü", "answer": "u"}', encoding="utf-8-sig")
    assert make_task(path).item(0) == Item("ü", "u")
    path.write_text('{"prompt": "ü", "answer": "u"}', encoding="latin-1")
    with pytest.raises(ValueError, match=r"questions.jsonl is not in UTF-8 .*save it with that encoding"):
        make_task(path)
    path.write_text('{"question": "1+1", "solution": "2"}\n')
    assert make_task(path, prompt_key="question", answer_key="solution").item(0) == Item("1+1", "2")


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


def test_wrong_tasks_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no task 'arithmetics', did you mean 'arithmetic'"):
        make_task("arithmetics")
    with pytest.raises(TypeError, match=r"'arithmetic' does not take task_kwargs={'digit': 1}"):
        make_task("arithmetic", digit=1)
    with pytest.raises(FileNotFoundError, match=r"no file 'missing\.jsonl'"):
        make_task("missing.jsonl")
    with pytest.raises(ValueError, match="no use for a task that exists"):
        make_task(CapitalsTask(), n=1)
    with pytest.raises(TypeError, match="task=3 has to be"):
        make_task(3)


@pytest.mark.parametrize("max_turns", [0, 2.5, "3"])
def test_wrong_numbers_of_guesses_are_named(max_turns: Any) -> None:
    with pytest.raises(ValueError, match="max_turns must be"):
        make_task("guess_number", max_turns=max_turns)


def test_guess_number_gives_hints_until_the_last_guess() -> None:
    task = GuessNumberTask(max_turns=3)
    item = task.item(6)
    assert item.answer == "6"
    assert task.reply(item, ["3"]) == "H"
    assert task.reply(item, ["3", "H", "8"]) == "L"
    assert task.reply(item, ["3", "H", "x"]) == "?"
    assert task.reply(item, ["6"]) is None and task.score("6", item) == 1
    assert task.reply(item, ["3", "H", "8", "L", "7"]) is None and task.score("7", item) == 0


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


def test_reasoning_gym_knows_where_a_data_set_ends() -> None:
    pytest.importorskip("reasoning_gym")
    task = make_task("reasoning_gym:word_ladder")
    assert task.n_items == 500
    task.item(499)
    # This one has some more than it says
    assert make_task("reasoning_gym:acre").n_items == 500


@pytest.mark.parametrize("name", ["string_manipulation", "graph_color", "circuit_logic", "list_functions", "spell_backward"])
def test_items_of_reasoning_gym_have_room(name: str) -> None:
    pytest.importorskip("reasoning_gym")
    env = VerifierTextVecEnv(2, task=f"reasoning_gym:{name}")
    rules, rng = env.rules, np.random.default_rng(7)
    for _ in range(100):
        item = rules.encode_item(rules.task.draw(rng)).item
        assert len(rules.tokenizer.encode(item.answer)) < rules.max_answer_tokens
    env.reset()
    env.step(np.array([1, 2]))
    # Where there is no reference, nobody knows how long an answer is
    assert rules.max_answer_tokens > 64 or name != "graph_color"
    assert rules.max_answer_tokens == VerifierTextVecEnv(2, task=f"reasoning_gym:{name}", seed=3).rules.max_answer_tokens


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


def test_wrong_names_of_reasoning_gym_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("reasoning_gym")
    with pytest.raises(ValueError, match=r"no data set 'basic_aritmetic'.*basic_arithmetic"):
        make_task("reasoning_gym:basic_aritmetic")
    with pytest.raises(ValueError, match=r"no parameter terms, only .*max_terms"):
        make_task("reasoning_gym:basic_arithmetic", terms=2)
    with pytest.raises(ValueError, match=r"refuses the parameters {'min_terms': -1}"):
        make_task("reasoning_gym:basic_arithmetic", min_terms=-1)
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ImportError, match=r'pip install "sb3-grpo\[text\]"'):
        make_task("reasoning_gym:basic_arithmetic")


def test_items_without_an_end_are_drawn_from_everywhere() -> None:
    task = Numbered(lambda index: (str(index), ""))
    rng = np.random.default_rng(0)
    drawn = list(islice(iter(lambda: task.draw(rng), None), 100))
    assert len(set(drawn)) == 100 and max(drawn) > 2**30
