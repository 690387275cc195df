import json
import re
from pathlib import Path
from typing import Any

import pytest

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
    assert config["machine"]["torch_threads"] == 1 and config["machine"]["device"] == "cpu"
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
    assert main(["text", "--digits", "2", "--algo", "grpo", "--timesteps", "1", "--examples", "64", "--output", "out"]) == 0
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
