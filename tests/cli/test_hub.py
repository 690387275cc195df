"""Models go to the Hugging Face Hub and come back, as data only. A folder stands in for the Hub."""

import importlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import yaml
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from toy_envs import SpacesEnv, parameters_of

from sb3_grpo import DAPO, GRPO
from sb3_grpo.cli.main import main

hub = pytest.importorskip("sb3_grpo.hub")

SMALL: dict[str, Any] = {"n_steps": 16, "n_epochs": 1, "seed": 0, "device": "cpu"}


@pytest.fixture
def repos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The repositories of the Hub, as folders."""

    class Api:
        def whoami(self) -> dict[str, str]:
            return {"name": "me"}

        def create_repo(self, repo_id: str, exist_ok: bool, private: bool | None) -> str:
            (tmp_path / repo_id).mkdir(parents=True, exist_ok=exist_ok)
            return f"https://huggingface.co/{repo_id}"

        def upload_folder(self, repo_id: str, folder_path: Path, commit_message: str) -> None:
            shutil.copytree(folder_path, tmp_path / repo_id, dirs_exist_ok=True)

    def snapshot_download(repo_id: str, revision: str | None, allow_patterns: list[str]) -> str:
        return str(tmp_path / repo_id)

    monkeypatch.setattr(hub.hub, "HfApi", Api)
    monkeypatch.setattr(hub.hub, "snapshot_download", snapshot_download)
    return tmp_path


def test_a_model_comes_back_with_a_card(repos: Path) -> None:
    model = DAPO("MlpPolicy", "CartPole-v1", **SMALL).learn(600)
    assert hub.push_to_hub(model, "me/cart", n_eval_episodes=20, command="python cart.py").endswith("me/cart")
    loaded = hub.load_from_hub("me/cart", device="cpu")
    assert type(loaded) is DAPO and parameters_of(loaded).equal(parameters_of(model))
    card = importlib.import_module("huggingface_hub").ModelCard.load(repos / "me" / "cart" / "README.md")
    (result,) = card.data.eval_results
    about = json.loads((repos / "me" / "cart" / "config.json").read_text())
    assert (result.dataset_name, result.metric_type) == ("CartPole-v1", "mean_reward")
    assert result.metric_value == f"{about['mean']:.2f} +/- {about['std']:.2f}"
    assert about["low"] < about["mean"] < about["high"] and about["episodes"] == 20
    assert {"stable-baselines3", "CartPole-v1"} <= {*card.data.tags}
    assert f"95% interval {about['low']:.2f} to {about['high']:.2f}" in card.text and "python cart.py" in card.text
    assert f"{model.num_timesteps:,} steps, seed 0" in card.text and 'load_from_hub("me/cart")' in card.text


def test_the_model_is_evaluated_where_it_is_told(repos: Path) -> None:
    class Plenty(gym.Wrapper):
        def step(self, action: Any) -> Any:
            observation, _, *others = self.env.step(action)
            return observation, 5.0, *others

    toy = SpacesEnv(spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(2), length=4)
    model = GRPO("MlpPolicy", toy, **SMALL)
    with pytest.raises(ValueError, match=r"does not know where: give env="):
        hub.push_to_hub(model, "me/toy")
    hub.push_to_hub(model, "me/toy", Plenty(toy), n_eval_episodes=3, deterministic=False)
    about = json.loads((repos / "me" / "toy" / "config.json").read_text())
    assert (about["env"], about["mean"], about["std"], about["actions"]) == ("DummyVecEnv", 20.0, 0.0, "sampled")


@pytest.mark.parametrize(("is_atari", "actions"), [(False, "most likely"), (True, "sampled")])
def test_actions_are_sampled_where_the_most_likely_may_get_stuck(
    is_atari: bool, actions: str, repos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "is_atari_id", {"CartPole-v1": is_atari}.get)
    hub.push_to_hub(GRPO("MlpPolicy", "CartPole-v1", **SMALL), "me/cart", n_eval_episodes=2)
    assert json.loads((repos / "me" / "cart" / "config.json").read_text())["actions"] == actions


def test_the_evaluation_can_be_repeated(repos: Path) -> None:
    model = GRPO("MlpPolicy", "CartPole-v1", **SMALL)
    means = []
    for name in ("me/one", "me/two"):
        hub.push_to_hub(model, name, gym.make("CartPole-v1"), n_eval_episodes=5, deterministic=False)
        means.append(json.loads((repos / name / "config.json").read_text())["mean"])
    assert means[0] == means[1]


def test_what_fails_does_so_before_the_evaluation(repos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def logged_out(_: Any) -> None:
        raise hub.hub.errors.LocalTokenNotFoundError("log in")

    def not_reached(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(hub, "evaluate_policy", not_reached)
    model = GRPO("MlpPolicy", "CartPole-v1", **SMALL)
    with pytest.raises(FileNotFoundError, match=r"none\.webp"):
        hub.push_to_hub(model, "me/cart", clip="none.webp")
    monkeypatch.setattr(hub.hub.HfApi, "whoami", logged_out)
    with pytest.raises(OSError, match="log in"):
        hub.push_to_hub(model, "me/cart")
    assert not (repos / "me").exists()


def test_an_author_names_no_module_to_import(repos: Path) -> None:
    model = GRPO("MlpPolicy", "CartPole-v1", **SMALL)
    model.env_id = "evil:CartPole-v1"
    hub.push_to_hub(model, "them/cart", "CartPole-v1", n_eval_episodes=2)
    assert hub.load_from_hub("them/cart").env_id is None


def test_what_cannot_be_shared(repos: Path) -> None:
    normalized = VecNormalize(DummyVecEnv([lambda: gym.make("CartPole-v1")]))
    with pytest.raises(ValueError, match=r"statistics of VecNormalize are not in the file.*normalize_observations=True"):
        hub.push_to_hub(GRPO("MlpPolicy", normalized, **SMALL), "me/cart", "CartPole-v1")
    GRPO("MlpPolicy", normalized, **SMALL).learn(32).save(repos / "model")
    with pytest.raises(ValueError, match="statistics of VecNormalize are not in the file"):
        hub.push_to_hub(GRPO.load(repos / "model"), "me/cart", "CartPole-v1", n_eval_episodes=2)
    lists = GRPO("MlpPolicy", "CartPole-v1", **SMALL, policy_loss=lambda *args: args[0])
    with pytest.raises(ValueError, match=r"policy_loss is .* no data"):
        hub.push_to_hub(lists, "me/cart", n_eval_episodes=2)
    with pytest.raises(ValueError, match="at least two episodes"):
        hub.push_to_hub(lists, "me/cart", n_eval_episodes=1)
    with pytest.raises(ValueError, match="statistics of VecNormalize are not in the file"):
        hub.push_to_hub(GRPO("MlpPolicy", "CartPole-v1", **SMALL), "me/cart", normalized, n_eval_episodes=2)
    assert not (repos / "me").exists()


def test_files_that_could_run_code_are_refused(repos: Path, tmp_path: Path) -> None:
    folder = repos / "them" / "cart"
    folder.mkdir(parents=True)
    with pytest.raises(ValueError, match="them/cart has no model that push_to_hub has uploaded"):
        hub.load_from_hub("them/cart")
    GRPO("MlpPolicy", "CartPole-v1", **SMALL).save(folder / "model.zip")
    for about in ("{}", "[]", '{"algorithm": "PPO"}', '{"algorithm": 1}', "no JSON", "[" * 100_000):
        (folder / "config.json").write_text(about)
        with pytest.raises(ValueError, match="them/cart has no model that push_to_hub has uploaded"):
            hub.load_from_hub("them/cart")
    (folder / "config.json").write_text('{"algorithm": "GRPO"}')
    with pytest.raises(ValueError, match="may run any program when it is loaded"):
        hub.load_from_hub("them/cart")
    PPO("MlpPolicy", "CartPole-v1").save(folder / "model.zip")
    with pytest.raises(ValueError, match="may run any program when it is loaded"):
        hub.load_from_hub("them/cart")


def test_commands(repos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = ["train", "--algo", "dapo", "--env", "CartPole-v1", "--timesteps", "600", "--output", "run", "--device", "cpu"]
    assert main([*run, "--eval-episodes", "4"]) == 0
    assert main(["hub", "push", "run", "me/cart"]) == 0
    card = (repos / "me" / "cart" / "README.md").read_text()
    assert f"sb3-grpo {' '.join(run)}" in card and "![The agent untrained, and trained](clip.webp)" in card
    assert (repos / "me" / "cart" / "clip.webp").read_bytes() == Path("run", "clip.webp").read_bytes()
    assert main(["hub", "load", "me/cart", "--output", "mine.zip"]) == 0
    assert 'DAPO.load("mine.zip")' in capsys.readouterr().out
    loaded = DAPO.load("mine.zip", trusted=False)
    assert parameters_of(loaded).equal(parameters_of(DAPO.load("run/model.zip")))
    assert main(["hub", "load", "me/cart", "--output", "mine.zip"]) == 2
    assert "already mine.zip" in capsys.readouterr().err
    assert main(["hub", "load", "me/cart", "--output", "mine"]) == 2, "saving adds .zip"
    assert main(["hub", "load", "me/cart", "--output", "."]) == 2
    assert main(["hub", "load", "me/none"]) == 2
    assert "me/none has no model" in capsys.readouterr().err
    Path("run", "config.json").write_text("{}")
    for folder in ("nowhere", "run"):
        assert main(["hub", "push", folder, "me/cart"]) == 2
        assert f"{folder} is not the folder of a run" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "sb3_grpo.hub", None)
    with pytest.raises(ImportError):
        main(["hub", "load", "me/cart"])


def test_a_missing_package_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sb3_grpo.hub")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert main(["hub", "load", "me/cart"]) == 2
    assert 'pip install "sb3-grpo[hub]"' in capsys.readouterr().err


def test_the_zoo_shares_and_plays_what_was_shared(
    repos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    zoo: Callable[[list[str]], int] = pytest.importorskip("sb3_grpo.zoo.cli").main
    monkeypatch.chdir(tmp_path)
    name = "Mine-v0"
    Path("mine.py").write_text(
        "import gymnasium as gym\ngym.register('Mine-v0', 'gymnasium.envs.classic_control:CartPoleEnv', max_episode_steps=100)"
    )
    monkeypatch.syspath_prepend(tmp_path)
    Path("own conf.yml").write_text("Mine-v0: {policy: MlpPolicy, n_timesteps: 600}")
    of = ["--algo", "grpo", "--env", f"mine:{name}"]
    options = ["--eval-freq", "-1", "--conf-file", "own conf.yml", "-params", "n_envs:2", "--seed", "1"]
    assert zoo(["train", *of, "-n", "600", *options]) == 0
    assert zoo(["push_to_hub", *of, "-orga", "me"]) == 0
    card = (repos / "me" / f"grpo-{name}" / "README.md").read_text()
    assert f"# GRPO on {name}\n" in card
    assert f" train --algo grpo --env mine:{name} --seed 1 -n 600 --conf-file 'own conf.yml' -params n_envs:2\n" in card
    shutil.rmtree("logs")
    assert zoo(["load_from_hub", *of, "-orga", "me"]) == 0
    folder = Path("logs", "grpo", f"{name}_1")
    assert yaml.safe_load((folder / name / "config.yml").read_text())["policy"] == "MlpPolicy"
    capsys.readouterr()
    assert zoo(["enjoy", *of, "-n", "300", "--no-render"]) == 0
    assert "Mean reward" in capsys.readouterr().out
    assert GRPO.load(folder / f"{name}.zip", trusted=False).num_timesteps >= 600


@pytest.mark.parametrize("command", ["enjoy", "record_video"])
def test_the_zoo_skips_frames_of_a_downloaded_game_once(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(*args: Any, env_kwargs: dict[str, Any], **kwargs: Any) -> None:
        made.append(env_kwargs)
        raise ImportError("far enough")

    made: list[dict[str, Any]] = []
    pytest.importorskip("ale_py")
    zoo: Callable[[list[str]], int] = pytest.importorskip("sb3_grpo.zoo.cli").main
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sb3_grpo.zoo.hub.load_from_hub", lambda repo: GRPO("MlpPolicy", "CartPole-v1", **SMALL))
    assert zoo(["load_from_hub", "--algo", "grpo", "--env", "ALE/Pong-v5", "-orga", "me"]) == 0
    monkeypatch.setattr("rl_zoo3.utils.make_vec_env", make)
    assert zoo([command, "--algo", "grpo", "--env", "ALE/Pong-v5"]) == 2
    assert made[0]["frameskip"] == 1
