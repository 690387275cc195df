import json
import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from PIL import Image
from toy_envs import SpacesEnv

from sb3_grpo import DAPO
from sb3_grpo.cli.main import main
from sb3_grpo.cli.runs import make_output
from sb3_grpo.cli.train import EpisodeReturns

SHORT = ["--timesteps", "1500", "--n-envs", "4", "--eval-episodes", "3", "--no-clip"]


pytestmark = pytest.mark.usefixtures("empty_folder")


def train(*arguments: str, env: str = "CartPole-v1", algo: str = "dapo") -> int:
    return main(["train", "--algo", algo, "--env", env, *arguments])


def train_and_read(*arguments: str, env: str = "CartPole-v1", algo: str = "dapo") -> dict[str, Any]:
    assert train(*SHORT, "--output", "out", *arguments, env=env, algo=algo) == 0
    return json.loads(Path("out/config.json").read_text())


def moving_image(render_mode: str | None = None) -> gym.Env:
    return SpacesEnv(gym.spaces.Box(0, 255, (36, 36, 1), np.uint8), gym.spaces.Discrete(2), length=3)


def in_a_dictionary(render_mode: str | None = None) -> gym.Env:
    env = gym.make("CartPole-v1")
    space = gym.spaces.Dict({"all": env.observation_space})
    return gym.wrappers.TransformObservation(env, lambda observation: {"all": observation}, space)


def nan_rewards(render_mode: str | None = None) -> gym.Env:
    return gym.wrappers.TransformReward(gym.make("CartPole-v1"), lambda reward: float("nan"))


def not_installed(render_mode: str | None = None) -> gym.Env:
    raise ImportError("the simulator is missing")


@pytest.fixture
def own_envs() -> Iterator[None]:
    gym.register("MovingImage-v0", f"{__name__}:moving_image")
    gym.register("Dictionary-v0", f"{__name__}:in_a_dictionary")
    gym.register("NanRewards-v0", f"{__name__}:nan_rewards")
    gym.register("NotInstalled-v0", f"{__name__}:not_installed")
    yield
    for name in "MovingImage-v0", "Dictionary-v0", "NanRewards-v0", "NotInstalled-v0":
        del gym.registry[name]


def test_train_leaves_model_curve_and_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        train(*SHORT, "--set", "group_size=3", "--set", "advantage=outcome", "--set", "policy_kwargs={'net_arch': [8]}") == 0
    )
    out = Path("runs/dapo/CartPole-v1_1")
    assert (out / "curve.png").read_bytes().startswith(b"\x89PNG")
    model = DAPO.load(out / "model.zip")
    assert model.group_size == 3 and model.advantage == "outcome" and model.policy_kwargs["net_arch"] == [8]
    config = json.loads((out / "config.json").read_text())
    hyperparameters = config["hyperparameters"]
    assert {"group_size": 3, "advantage": "outcome", "policy_kwargs": {"net_arch": [8]}}.items() <= hyperparameters.items()
    assert hyperparameters["clip_range_high"] == 0.28, "what was not set is there as well"
    assert hyperparameters["loss_average"] == "step"
    assert config["training"]["steps"] == model.num_timesteps >= 1500
    assert config["training"]["episodes"] > 10 and not config["training"]["interrupted"]
    assert config["evaluation"]["episodes"] == 3 and config["evaluation"]["mean_return"] > 5
    assert config["arguments"]["seed"] == 0
    printed = capsys.readouterr().out
    assert "no (threshold: mean return of 475)" in printed
    assert f"{config['evaluation']['mean_return']:.2f}" in printed


def test_train_leaves_a_moving_picture(capsys: pytest.CaptureFixture[str]) -> None:
    assert train(*SHORT[:-1], "--output", "out") == 0
    picture = Image.open("out/clip.webp")
    assert picture.format == "WEBP" and picture.n_frames > 5 and Path("out/clip.webp").stat().st_size <= 300_000
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search(r"Clip out/clip.webp: untrained and trained from the same start, return \d+ and \d+ ", printed)
    assert "out: clip.webp, config.json, curve.png, model.zip" in printed


def test_without_a_clip(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    train_and_read()
    assert "lip" not in capsys.readouterr().out
    assert sorted(os.listdir("out")) == ["config.json", "curve.png", "model.zip"]
    # As if it were not installed: training is not affected
    monkeypatch.setitem(sys.modules, "pygame", None)
    assert train(*SHORT[:-1], "--output", "other") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Clip none, " in printed and "pygame is not installed, run `pip install" in printed
    assert sorted(os.listdir("other")) == ["config.json", "curve.png", "model.zip"]


def test_presets_and_what_is_set_beside_them(capsys: pytest.CaptureFixture[str]) -> None:
    config = train_and_read("--preset", "grpo-paper", "--set", "kl_coef=0", "--set", "group_size=4")
    used = config["hyperparameters"]
    assert used["kl_coef"] == 0 and used["group_size"] == 4, "it wins"
    assert used["advantage"] == "outcome" and used["dynamic_sampling"] is False and used["n_epochs"] == 1
    assert config["arguments"]["preset"] == "grpo-paper"
    assert "DAPO (grpo-paper) on CartPole-v1" in capsys.readouterr().out
    assert train(*SHORT, "--timesteps", "1") == 0
    assert "DAPO on CartPole-v1" in capsys.readouterr().out
    with pytest.raises(SystemExit) as error:
        train("--preset", "grpo")
    assert error.value.code == 2
    said = capsys.readouterr().err
    assert "'grpo'" in said and "grpo-paper" in said and "prorl" in said


@pytest.mark.parametrize(
    ("env", "policy"),
    [("MovingImage-v0", "ActorCnnPolicy"), ("Dictionary-v0", "ActorMultiInputPolicy"), ("CartPole-v1", "ActorPolicy")],
)
def test_policy_suits_the_observations(env: str, policy: str, own_envs: None) -> None:
    config = train_and_read("--timesteps", "40", "--device", "cpu", "--set", "n_steps=16", env=env, algo="grpo")
    assert config["policy"] == policy


def test_ctrl_c_while_the_commands_are_imported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(commands: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sb3_grpo.cli.train.add_command", interrupted)
    assert train() == 130 and "Interrupted" in capsys.readouterr().err


def test_curve_counts_atari_games_and_not_lives() -> None:
    callback = EpisodeReturns()
    callback.num_timesteps = 7
    callback.locals = {"dones": np.array([True, True, False]), "infos": [{}, {"episode": {"r": 2.0}}, {}]}
    callback._on_step()
    callback.locals = {"dones": np.array([False, False, False]), "infos": [{"episode": {"r": 9.0}}, {}, {}]}
    assert callback._on_step()
    assert [episode_return for _, episode_return in callback.points] == [2.0]


def test_atari_games_are_played_with_sampled_actions(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ale_py")
    settings = ["n_steps=16", "n_epochs=1", "batch_size=64"]
    options = [argument for setting in settings for argument in ("--set", setting)]
    config = train_and_read("--timesteps", "64", "--eval-episodes", "1", *options, env="ALE/Pong-v5")
    assert config["evaluation"]["deterministic"] is False
    assert "sampled actions: mean return -2" in " ".join(capsys.readouterr().out.split())


def test_ctrl_c_keeps_the_model(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(callback: EpisodeReturns) -> bool:
        if callback.num_timesteps > 800:
            raise KeyboardInterrupt
        return record(callback)

    record = EpisodeReturns._on_step
    monkeypatch.setattr(EpisodeReturns, "_on_step", interrupt)
    assert train(*SHORT, "--output", "an out") == 130
    model = DAPO.load("an out/model.zip", env=gym.make("CartPole-v1"))
    assert 800 < model.num_timesteps < 1500
    assert 0 <= int(model.predict(np.zeros(4, np.float32))[0]) <= 1
    config = json.loads(Path("an out/config.json").read_text())
    assert config["training"]["interrupted"] and config["evaluation"] is None
    assert Path("an out/curve.png").exists()
    printed = capsys.readouterr().out
    assert "Interrupted after" in printed and "out: checkpoints, config.json, curve.png, model.zip" in printed
    assert "To resume: sb3-grpo train --resume 'an out'" in printed


def test_runs_that_begin_at_the_same_moment_have_folders_of_their_own() -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: make_output(None, Path("runs"), "CartPole-v1"), range(200)))
    assert len(set(folders)) == 200


def test_a_model_is_never_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    Path("out").mkdir()
    Path("out/model.zip").write_bytes(b"precious")
    assert train(*SHORT, "--output", "out") == 2
    assert Path("out/model.zip").read_bytes() == b"precious"
    assert "out has a file model.zip already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("env", "options", "hint"),
    [
        ("cartpole-v1", (), "Similar names: CartPole-v1"),
        ("Boat-v0", (), "registers it, write MODULE:Boat-v0"),
        ("LunarLander-v2", (), "Please use `LunarLander-v3`"),
        ("PongNoFrameSkip-v4", (), "PongNoFrameskip-v4"),
        ("json:qqqqqqq", (), "json was imported, and does not register it"),
        ("no_such_module:CartPole-v1", (), "cannot import no_such_module"),
        ("sb3_grpo:sb3_grpo/VerifierText-v0", (), "sb3-grpo text"),
        ("Blackjack-v1", (), "FlattenObservation(env) makes a vector of them"),
        ("CartPole-v1", ("--n-envs", "65537"), "n_envs must be between 1 and 65536"),
        ("CartPole-v1", ("--device", "gpu"), "device string: gpu"),
        pytest.param(
            "CartPole-v1",
            ("--device", "cuda"),
            "finds no GPU",
            marks=pytest.mark.skipif(th.cuda.is_available(), reason="there is a GPU"),
        ),
        ("CartPole-v1", ("--set", "group_size"), "expected KEY=VALUE"),
        ("CartPole-v1", ("--set", "groupsize=8"), "did you mean 'group_size'?"),
        ("CartPole-v1", ("--set", "groups=8"), "--help lists all"),
        ("CartPole-v1", ("--time-steps", "8"), "unknown: --time-steps 8. Add --help"),
        ("CartPole-v1", ("--set", "n_envs=4"), "--set n_envs: it has an option of its own"),
        ("CartPole-v1", ("--set", "policy=MlpLstmPolicy"), "can only be chosen in a script"),
        ("CartPole-v1", ("--set", "aux_vf_coef=0.1"), "write vf_coef"),
        ("CartPole-v1", ("--set", "dynamic_sampling=false"), "write dynamic_sampling=False"),
        ("CartPole-v1", ("--set", "group_size=4.0"), "must be a whole number, got 4.0 (float): write group_size=4"),
        ("CartPole-v1", ("--set", "gamma='x'"), "gamma must be a finite number or None, got 'x' (str)"),
        ("CartPole-v1", ("--set", "policy_kwargs=dict([('layers', 3)])"), "is not a literal: only numbers, strings"),
    ],
)
def test_what_cannot_be_trained(env: str, options: tuple[str, ...], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ale_py")
    assert train(*SHORT, *options, env=env) == 2
    said = capsys.readouterr().err
    assert hint in said and len(said) < 700
    assert not os.listdir(".")


def test_set_values() -> None:
    settings = ["learning_rate=1", "clip_range_high=None", "target_kl=0.05", "dynamic_sampling=False", "ratio_level='episode'"]
    settings += ["policy_kwargs=dict(net_arch=dict(pi=[8]), ortho_init=False, activation_fn=nn.ReLU)"]
    config = train_and_read(*(argument for setting in settings for argument in ("--set", setting)))
    expected = {
        "learning_rate": 1,
        "clip_range_high": None,
        "target_kl": 0.05,
        "dynamic_sampling": False,
        "ratio_level": "episode",
        "policy_kwargs": {"net_arch": {"pi": [8]}, "ortho_init": False, "activation_fn": str(th.nn.ReLU)},
    }
    assert expected.items() <= config["hyperparameters"].items()


def test_the_algorithms_own_errors_have_no_traceback(own_envs: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(*SHORT, env="NanRewards-v0") == 2
    assert "rewards must be finite" in capsys.readouterr().err


def test_an_environment_that_lacks_a_package_is_named(own_envs: None, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rl_zoo3")
    for command in "train", "compare":
        assert main([command, "--algo", "grpo", "--env", "json:NotInstalled-v0"]) == 2
        assert "the simulator is missing" in capsys.readouterr().err


def test_defects_have_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EpisodeReturns, "_on_step", lambda callback: bool(np.array("no number").astype(int)))
    with pytest.raises(ValueError, match="no number"):
        train(*SHORT)
