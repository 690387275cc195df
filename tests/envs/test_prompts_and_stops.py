import copy
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from toy_envs import TINY_TEXT

from sb3_grpo.envs import HuggingFaceTokenizer, Item, PairsTask, VerifierTextEnv, VerifierTextVecEnv, make_task
from sb3_grpo.grpo import GRPO
from sb3_grpo.text.tokens import PAD
from sb3_grpo.text.warm_start import _encode_example

tokenizers = pytest.importorskip("tokenizers")

SUMS = [("1+2=", "3"), ("12+34=", "46")]
TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture(scope="module")
def bpe() -> Any:
    """A byte-level tokenizer, with tokens such as ``46``, ``</``, ``answer`` and two ends of lines."""
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = byte_level, tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>", "</s>", "<|end|>"], initial_alphabet=byte_level.alphabet()
    )
    tokenizer.train_from_iterator(["12+34=46\n"] * 50 + ["</answer>\n\n"] * 50, trainer)
    return tokenizer


def chatty(bpe: Any, template: str = TEMPLATE) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", chat_template=template
    )


def first_text(bpe: Any, env: VerifierTextEnv, item: int = 0) -> str:
    """What the agent reads first. Special tokens are visible."""
    row = env.reset(options={"item": item})[0]
    return bpe.decode(row[row != PAD].tolist(), skip_special_tokens=False)


# Stops


@pytest.mark.parametrize(
    ("stop", "tokens", "answer"),
    [
        ([], ["46", "\n", "</s>"], "46\n"),
        (["\n"], ["46", "</s>"], "46"),
        (["\n"], ["46", "\n"], "46"),
        (["\n"], ["46", "\n\n"], "46"),
        (["\n\n"], ["46", "\n", "\n"], "46"),
        (["</answer>"], ["46", "</", "answer", ">"], "46"),
        (["</answer>"], ["46", "</", "a", ">", "</s>"], "46</a>"),
        (["x", "</answer>"], ["</", "answer", ">"], ""),
        (["<|end|>"], ["46", "<|end|>"], "46"),
        (["é"], ["4", b"\xc3", b"\xa9"], "4"),
    ],
)
def test_an_answer_ends_with_the_token_that_completes_a_stop(bpe: Any, stop: Any, tokens: Any, answer: str) -> None:
    # Single bytes are tokens, too, which have no text of their own
    id_of = {bpe.decode([token], skip_special_tokens=False): token for token in range(bpe.get_vocab_size())}
    id_of |= {b"\xc3": bpe.token_to_id("Ã"), b"\xa9": bpe.token_to_id("©")}
    settings: dict[str, Any] = {"task": SUMS, "stop": stop, "tokenizer": bpe, "max_answer_tokens": 6}
    env, copies = VerifierTextEnv(**settings), VerifierTextVecEnv(2, **settings)
    env.reset(options={"item": 1})
    copies.set_options({"item": 1})
    copies.reset()
    *before, last = [(env.step(id_of[token]), copies.step(np.array([id_of[token], id_of["3"]]))) for token in tokens]
    assert not any(step[2] or step[3] or dones[0] for step, (_, _, dones, _) in before)
    assert last[0][2] and last[0][4]["answer"] == answer and last[0][1] == float(answer.strip() == "46")
    assert last[1][2].tolist() == [True, False] and last[1][3][0]["answer"] == answer


def test_policies_stop_where_the_environment_does(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"task": "arithmetic", "stop": ["3+", "="], "max_answer_tokens": 12}
    model = GRPO("TokenPolicy", VerifierTextVecEnv(4, **settings), group_size=4, policy_kwargs=TINY_TEXT, device="cpu", seed=0)
    policy: Any = model.policy
    prompts = th.tensor([policy.observation_space.tokenizer.encode("3+4=")] * 50)
    env, ended = VerifierTextEnv(**settings), 0
    for text in policy.generate_tokens(prompts, 12).tolist():
        env.reset(options={"item": 34})
        *before, last = [env.step(token) for token in text[4:] if token != PAD]
        assert (last[2] or last[3]) and not any(step[2] or step[3] for step in before)
        ended += last[2]
    assert ended > 10
    answers = policy.generate(["3+4="] * 50, max_new_tokens=12, deterministic=False)
    assert not any(stop in answer for answer in answers for stop in settings["stop"])

    for name in ("sb3", "safe"):
        model.save(tmp_path / name, format=name)
        GRPO.load(tmp_path / name, model.get_env(), device="cpu")
        with pytest.raises(ValueError, match=r"Observation spaces do not match: .*stop=\('3\+', '='\)"):
            GRPO.load(tmp_path / name, VerifierTextVecEnv(4, **{**settings, "stop": ["="]}))


def test_a_stop_ends_a_turn(bpe: Any) -> None:
    env = VerifierTextEnv("guess_number", tokenizer=bpe, stop=["\n"], max_answer_tokens=8, max_reply_tokens=3)
    env.reset(options={"item": 6})
    step: Any = None
    for text in ("3", "\n", "6", "\n"):
        step = env.step(bpe.encode(text).ids[0])
    assert step[1:3] == (1.0, True) and step[4]["messages"] == ["3", "H", "6"]


def test_stops_have_to_be_writable() -> None:
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "</s>": 1, "12": 2, "END": 3}, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.add_special_tokens(["</s>"])
    VerifierTextEnv([("12", "12")], tokenizer=words, stop=["END", "</s>"])
    for stop, written in (("\n", ""), ("STOP", "<unk>"), ("END.", "END <unk>")):
        message = f"stop={stop!r} can never be written: the tokenizer can only write {written!r}. Leave it out"
        with pytest.raises(ValueError, match=re.escape(message)):
            VerifierTextEnv([("12", "12")], tokenizer=words, stop=[stop])
    with pytest.raises(ValueError, match="reference of item 0, '34': of it, the tokenizer can write '<unk>'"):
        VerifierTextEnv([("12", "34")], tokenizer=words)


# Texts that continue others


def metaspace() -> tuple[Any, Any]:
    return tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first", split=False), tokenizers.decoders.Metaspace()


def prepend() -> tuple[Any, Any]:
    """As in Llama 2."""
    decoders = tokenizers.decoders
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return None, decoders.Sequence(steps)


@pytest.fixture(params=[metaspace, prepend])
def spaced(request: pytest.FixtureRequest) -> Any:
    """A tokenizer that puts a space before a text, with a token that a prompt and an answer may share."""
    pieces = ["<unk>", "</s>", "\u2581", *"0123456789+-*/()=?\n", *"abcdefghijklmnopqrstuvwxyz", "=-"]
    ids = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(ids, [("=", "-")], unk_token="<unk>"))
    pre_tokenizer, tokenizer.decoder = request.param()
    if pre_tokenizer is None:
        steps = [tokenizers.normalizers.Prepend("\u2581"), tokenizers.normalizers.Replace(" ", "\u2581")]
        tokenizer.normalizer = tokenizers.normalizers.Sequence(steps)
    else:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.add_special_tokens(["</s>"])
    assert tokenizer.encode("7").tokens == ["\u2581", "7"]
    return HuggingFaceTokenizer(tokenizer, eos_token="</s>")


def test_answers_and_replies_begin_without_the_space_of_a_prompt(spaced: Any) -> None:
    settings: dict[str, Any] = {"task_kwargs": {"digits": 1}, "tokenizer": spaced, "stop": ["\n"]}
    env = VerifierTextEnv("calculator", **settings, max_prompt_tokens=5)
    row = env.reset(options={"item": 23})[0]
    assert spaced.decode(row) == "2*3="
    for token in spaced.encode("calc(2*3)\n"):
        row = env.step(token)[0]
    assert spaced.decode(row) == "2*3=calc(2*3)\n6\n"
    for token in spaced.encode("6\n"):
        step = env.step(token)
    assert step[1] == 1.0 and step[4]["messages"] == ["calc(2*3)", "6\n", "6"]
    # Room for the longest answers without it: 27 and a new line
    assert VerifierTextEnv([("3*9=", "27")], tokenizer=spaced, stop=["\n"]).rules.max_answer_tokens == 3


@pytest.mark.parametrize(("prompt", "answer"), [("3*4=", "12"), ("3*4=", " 12"), ("3-4=", "-1"), ("a", "b\n"), ("", "a b")])
def test_an_example_for_pretraining_is_one_text(spaced: Any, prompt: str, answer: str) -> None:
    env = VerifierTextVecEnv(2, task=[("3-4=", "-1")], tokenizer=spaced, max_prompt_tokens=20)
    policy: Any = GRPO("TokenPolicy", env, group_size=2, policy_kwargs=TINY_TEXT, device="cpu").policy
    tokens, n_given = _encode_example(policy, (prompt, answer))
    assert spaced.decode(tokens) == prompt + answer and tokens[-1] == spaced.eos_id
    assert tokens[: n_given if prompt else 0] == (spaced.encode_prompt(prompt) if prompt else [])


@pytest.mark.parametrize("decoder", [tokenizers.decoders.WordPiece(), None])
def test_answers_are_words_for_wordpiece(decoder: Any) -> None:
    names = ["[UNK]", "[EOS]", "a", "1", "4", "42", "##4", "##2", "##42", "+", "="]
    ids = {name: index for index, name in enumerate(names)}
    wordpiece = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
    wordpiece.pre_tokenizer, wordpiece.decoder = tokenizers.pre_tokenizers.BertPreTokenizer(), decoder
    tokenizer = HuggingFaceTokenizer(wordpiece)
    for text, tokens in [("42", ["42"]), ("4+1", ["4", "+", "1"]), ("+42", ["+", "42"]), ("a42", ["a", "##42"])]:
        assert tokenizer.encode(text) == [ids[token] for token in tokens]
    env = VerifierTextEnv([("4=", "42")], tokenizer=tokenizer)
    env.reset()
    env.step(ids["42"])
    assert env.step(ids["[EOS]"])[1] == 1.0


def test_replies_in_a_chat_are_those_of_the_whole_chat(spaced: Any) -> None:
    transformers = pytest.importorskip("transformers")
    template = (
        "{% for m in messages %}{{ m.role[:1] }} {{ m.content }}{% if m.role == 'assistant' %}</s>{% endif %}{% endfor %}("
    )
    chat = transformers.PreTrainedTokenizerFast(tokenizer_object=spaced._backend, eos_token="</s>", chat_template=template)
    env = VerifierTextEnv("guess_number", tokenizer=chat, chat_template=True, max_answer_tokens=8)
    row = env.reset(options={"item": 6})[0]
    for token in [*spaced.encode("x"), spaced.eos_id]:
        row = env.step(token)[0]
    assert row[row != PAD].tolist() == spaced.encode_prompt("u 0-9?(x</s>u ?(")


# Prompts


def test_examples_come_before_each_prompt(bpe: Any) -> None:
    env = VerifierTextEnv(SUMS, tokenizer=bpe, examples=[("5+5=", 10), ("2+2=", "4")], stop=["\n"])
    assert first_text(bpe, env, 1) == "5+5=10\n2+2=4\n12+34="
    assert first_text(bpe, env, 0) == "5+5=10\n2+2=4\n1+2="
    # Room for exactly this, and for an answer with its stop
    assert (env.rules.max_prompt_tokens, env.rules.max_answer_tokens) == (len(bpe.encode("5+5=10\n2+2=4\n12+34=").ids), 2)
    assert env.worked_examples(1, seed=0)[0][0].startswith("5+5=10\n2+2=4\n")


def test_chats(bpe: Any) -> None:
    settings: dict[str, Any] = {"tokenizer": chatty(bpe), "chat_template": True}
    assert first_text(bpe, VerifierTextEnv(SUMS, **settings)) == "[user]1+2=</s>\n[assistant]"
    with_own = HuggingFaceTokenizer(chatty(bpe))
    with_own.chat_template = TEMPLATE.replace("[", "(").replace("]", ")")
    assert with_own.apply_chat_template([{"role": "user", "content": "1"}]).count("(user)1") == 1
    talk = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+2="}]
    env = VerifierTextEnv([(talk, "3"), ("12+34=", "46")], system_prompt="Be short.", examples=[("2+2=", "4")], **settings)
    shot = "[user]2+2=</s>\n[assistant]4</s>\n"
    assert first_text(bpe, env, 0) == f"[system]Add.</s>\n{shot}[user]1+2=</s>\n[assistant]"
    longest = f"[system]Be short.</s>\n{shot}[user]12+34=</s>\n[assistant]"
    assert first_text(bpe, env, 1) == longest == env.rules.prompts.text("12+34=")
    assert env.rules.max_prompt_tokens == len(bpe.encode(longest).ids)
    assert pickle.loads(pickle.dumps(env.observation_space)) == env.observation_space
    turns = [("user", "2*2="), ("assistant", "2+2="), ("user", "4")]
    examples = [([{"role": role, "content": content} for role, content in turns], "4")]
    shot = "[user]2*2=</s>\n[assistant]2+2=</s>\n[user]4</s>\n[assistant]4</s>\n"
    env = VerifierTextEnv(SUMS, examples=examples, **settings)
    assert first_text(bpe, env, 0) == f"{shot}[user]1+2=</s>\n[assistant]"


def test_replies_are_turns_of_the_chat(bpe: Any) -> None:
    env = VerifierTextEnv("guess_number", tokenizer=chatty(bpe), chat_template=True, max_answer_tokens=8)
    text = first_text(bpe, env, 6)
    for token in bpe.encode("3</s>8</s>").ids:
        row = env.step(token)[0]
    expected = f"{text}3</s>\n[user]H</s>\n[assistant]8</s>\n[user]L</s>\n[assistant]"
    assert bpe.decode(row[row != PAD].tolist(), skip_special_tokens=False) == expected
    assert env.step(bpe.token_to_id("6"))[2:4] == (False, False)
    assert env.step(bpe.token_to_id("</s>"))[1] == 1.0


def test_a_prompt_begins_with_the_token_that_the_tokenizer_puts_before_texts(bpe: Any) -> None:
    bpe = copy.deepcopy(bpe)
    specials = [(name, bpe.token_to_id(name)) for name in ("<s>", "</s>")]
    bpe.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A </s>", special_tokens=specials)
    env = VerifierTextEnv([*SUMS, ("<s>1+3=", "4")], tokenizer=bpe)
    assert first_text(bpe, env, 1) == "<s>12+34="
    assert first_text(bpe, env, 2) == "<s>1+3="
    assert env.rules.max_prompt_tokens == 5 and env.rules.max_answer_tokens == 2
    for template in (TEMPLATE, "{{ bos_token }}" + TEMPLATE):
        env = VerifierTextEnv("guess_number", tokenizer=chatty(bpe, template), chat_template=True, max_answer_tokens=8)
        assert first_text(bpe, env) == "<s>[user]0-9?</s>\n[assistant]"
        for token in bpe.encode("3</s>", add_special_tokens=False).ids:
            row = env.step(token)[0]
        assert row.tolist().count(bpe.token_to_id("<s>")) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stop": "="}, r"stop='=' has to be a list of texts .* stop=\['\\n'\]"),
        ({"stop": [""]}, r"stop=\[''\] has to be a list of texts that are not empty"),
        ({"stop": ["\n"]}, r"stop='\\n' can never be written. The character '\\n' .*CharTokenizer"),
        ({"chat_template": True}, r"needs a tokenizer of transformers .*, and CharTokenizer\("),
        ({"system_prompt": "Add."}, "set chat_template=True"),
        ({"task": [([{"role": "user", "content": "a"}], "b")]}, "list of messages needs chat_template=True"),
        ({"task": [([{"role": "user"}], "b")]}, "Pair 0 is not a pair"),
        ({"examples": ["ab"]}, r"examples\[0\] is not a pair"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VerifierTextEnv(**settings)


class Rows:
    """Like a ``datasets.Dataset``."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"question": [{"role": "user", "content": f"{index}+1="}], "solution": index + 1, "source": "me"}


def test_rows_of_data_sets() -> None:
    task = make_task(Rows(), prompt_key="question", answer_key="solution")
    assert isinstance(task, PairsTask) and task.n_items == 2
    assert task.item(1) == Item([{"role": "user", "content": "1+1="}], "2", {"solution": 2, "source": "me"})
    with pytest.raises(ValueError, match=r"Pair 0 has no 'prompt', only 'question', 'solution', 'source'. Name the keys"):
        make_task(Rows())
    with pytest.raises(TypeError, match="one split of a data set"):
        make_task({"train": Rows()})
