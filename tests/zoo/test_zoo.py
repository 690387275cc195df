import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rl_zoo3")

import optuna
import yaml
from optuna.trial import TrialState
from rl_zoo3 import ALGOS
from rl_zoo3.hyperparams_opt import HYPERPARAMS_CONVERTER, HYPERPARAMS_SAMPLER
from stable_baselines3 import PPO

from sb3_grpo import DAPO, GRPO
from sb3_grpo.console import USAGE_ERROR, UsageError
from sb3_grpo.zoo.cli import _COMMANDS, main
from sb3_grpo.zoo.studies import make_tables

ROOT = Path(__file__).resolve().parents[2]
CARTPOLE = ("--env", "CartPole-v1", "--num-threads", "1", "--device", "cpu")
SMALL = ("n_envs:4", "group_size:2", "n_groups:2")
TRIALS = ("--optimize", "--n-startup-trials", "1", "--n-evaluations", "1", "--eval-episodes", "1", "--no-optim-plots")


def train(*arguments: str, algo: str = "dapo") -> int:
    return main(["train", "--algo", algo, *CARTPOLE, *arguments])


def load(storage: str) -> optuna.Study:
    if "://" in storage:
        return optuna.load_study(study_name="study", storage=storage)
    backend = optuna.storages.journal.JournalFileBackend(storage)
    return optuna.load_study(study_name="study", storage=optuna.storages.JournalStorage(backend))


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log folder with two runs of DAPO, and a third one that failed."""
    logs = tmp_path_factory.mktemp("logs")
    hyperparams = (*SMALL, "n_envs:2", "clip_range:'lin_0.2'", "clip_range_high:'lin_0.28'", "normalize:True", "frame_stack:2")
    for seed, vec_env in (("1", "subproc"), ("2", "dummy")):
        options = ("-f", str(logs), "--seed", seed, "-n", "600", "--save-freq", "200")
        evaluation = ("--eval-freq", "200", "--eval-episodes", "2")
        assert train(*options, *evaluation, "--vec-env", vec_env, "-P", "-tb", str(logs / "tb"), "-params", *hyperparams) == 0
    (logs / "dapo" / "CartPole-v1_3").mkdir()
    return logs


def test_import_registers_the_algorithms() -> None:
    assert ALGOS["grpo"] is GRPO and ALGOS["dapo"] is DAPO and ALGOS["ppo"] is PPO and "trpo" in ALGOS
    assert {"grpo", "dapo"} <= set(HYPERPARAMS_SAMPLER) & set(HYPERPARAMS_CONVERTER)


def test_missing_extra_is_named(tmp_path: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.modules['rl_zoo3'] = None; import sb3_grpo.zoo"
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert 'RL Baselines3 Zoo needs rl_zoo3, which is not installed: pip install "sb3-grpo[zoo]"' in result.stderr


def test_training_leaves_what_the_zoo_leaves(trained: Path) -> None:
    run = trained / "dapo" / "CartPole-v1_1"
    names = {path.name for path in run.iterdir()}
    assert {"CartPole-v1.zip", "best_model.zip", "evaluations.npz", "0.monitor.csv"} <= names
    assert {"rl_model_200_steps.zip", "clip.webp"} <= names
    assert (run / "CartPole-v1" / "vecnormalize.pkl").exists()
    assert list((trained / "tb").rglob("events.out*"))
    config = yaml.load((run / "CartPole-v1" / "config.yml").read_text(), Loader=yaml.UnsafeLoader)
    assert config["n_timesteps"] == 600 and config["clip_range_high"] == "lin_0.28"
    model = DAPO.load(run / "CartPole-v1.zip")
    assert model.clip_range_high(0.5) == 0.14 and model.clip_range(0.5) == 0.1
    assert model.observation_space.shape == (8,) and model._n_updates > 0


def test_evaluations_end_with_the_steps_that_were_asked_for() -> None:
    # One rollout of 32 episodes goes far beyond them
    options = ("-n", "200", "--eval-freq", "100", "--eval-episodes", "1", "-params", "n_groups:16", "group_size:2", "n_envs:4")
    assert train("--no-clip", *options, algo="grpo") == 0
    run = Path("logs/grpo/CartPole-v1_1")
    assert GRPO.load(run / "CartPole-v1.zip").num_timesteps > 300
    assert not (run / "clip.webp").exists()
    assert np.load(run / "evaluations.npz")["timesteps"].tolist() == [100, 200]


def test_an_entry_may_have_a_preset(capsys: pytest.CaptureFixture[str]) -> None:
    entry = {"policy": "MlpPolicy", "n_timesteps": 200, "n_envs": 4, "preset": "grpo-paper", "group_size": 2, "ent_coef": 0.02}
    Path("own.yml").write_text(yaml.dump({"CartPole-v1": entry}))
    options = ("--conf-file", "own.yml", "--eval-freq", "-1")
    assert train(*options, algo="dapo") == 0
    model = DAPO.load("logs/dapo/CartPole-v1_1/CartPole-v1.zip")
    # What stands beside it wins, and nothing is left of DAPO's defaults
    assert (model.advantage, model.group_size, model.ent_coef, model.kl_coef) == ("outcome", 2, 0.02, 0.04)
    assert model.dynamic_sampling is False and model.clip_range_high is None and model.loss_average == "episode"
    # Another one takes its place, and the entry's own hyperparameters, too
    assert train(*options, "-params", "preset:'gspo'", "ent_coef:0.01", algo="grpo") == 0
    model = GRPO.load("logs/grpo/CartPole-v1_1/CartPole-v1.zip")
    assert (model.ratio_level, model.kl_coef, model.group_size, model.ent_coef) == ("episode", 0.0, 2, 0.01)
    assert model.batch_size == 256, "nothing is left of the first preset"
    capsys.readouterr()
    assert train(*options, "-params", "preset:'grpo'", algo="grpo") == 2
    assert "Unknown preset 'grpo', must be one of vpg, grpo-paper" in capsys.readouterr().err
    assert train("-n", "100", "-params", "preset:'gspo'", algo="ppo") == 2
    assert "settings of grpo and dapo, not of ppo" in capsys.readouterr().err


def test_training_is_continued(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = trained / "dapo" / "CartPole-v1_1" / "CartPole-v1.zip"
    options = ("-i", str(first), "-n", "300", "--eval-freq", "-1", "-params", *SMALL, "normalize:True", "frame_stack:2")
    assert train(*options) == 0
    assert "Loading saved VecNormalize stats" in capsys.readouterr().out
    assert DAPO.load("logs/dapo/CartPole-v1_1/CartPole-v1.zip")._n_updates > DAPO.load(first)._n_updates


def test_enjoy_takes_the_latest_run_that_has_a_model(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["enjoy", "--algo", "dapo", *CARTPOLE, "-f", str(trained), "--no-render", "-n", "300"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "id=2 (CartPole-v1_3: without this model, failed or unfinished)" in printed
    assert "Mean reward" in printed
    assert main([*arguments, "--load-best", "--exp-id", "1"]) == 0
    assert "CartPole-v1_1/best_model.zip" in capsys.readouterr().out


def test_enjoy_in_an_environment_that_nobody_registers(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Path("logs/dapo/SwingUp-v0_1")
    run.mkdir(parents=True)
    shutil.copy(trained / "dapo" / "CartPole-v1_1" / "CartPole-v1.zip", run / "SwingUp-v0.zip")
    assert main(["enjoy", "--algo", "dapo", "--env", "SwingUp-v0", "-f", "logs", "--no-render"]) == USAGE_ERROR
    assert "--env MODULE:SwingUp-v0, or --gym-packages MODULE" in capsys.readouterr().err.replace("\n", " ")


def test_video_is_recorded(trained: Path, tmp_path: Path) -> None:
    pytest.importorskip("moviepy")
    assert main(["record_video", "--algo", "dapo", *CARTPOLE[:2], "-f", str(trained), "-n", "20", "-o", "videos"]) == 0
    assert next(Path("videos").glob("*.mp4")).stat().st_size > 1000


def test_benchmark_knows_the_algorithms_in_its_processes(trained: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ("--benchmark-dir", "table", "--no-hub", "-n", "300", "--num-threads", "1")
    assert main(["benchmark", "--log-dir", str(trained), *options]) == 0
    row = Path("benchmark.md").read_text().splitlines()[-1]
    assert re.match(r"\|dapo\|CartPole-v1\| *[\d.]+\| *[\d.]+\|0k", row), row
    assert "Error during evaluation" not in capfd.readouterr().out


def test_plots_are_saved(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["-e", "CartPole-v1", "-f", str(trained)]
    assert main(["plot", "all_plots", "-a", "dapo", *where, "-o", "results", "--save", "figures"]) == 0
    captured = capsys.readouterr()
    assert "Eval not found for" in captured.out and "CartPole-v1_3" in captured.out
    assert main(["plot", "plot_train", "-a", "dapo", *where, "-w", "2", "--save", "figures"]) == 0
    assert main(["plot", "plot_from_file", "-i", "results", "--save", "figures"]) == 0
    names = {path.name for path in Path("figures").glob("*.png")}
    assert {"Results_CartPole-v1.png", "Training_Episodic_Reward.png", "Sensitivity_plot.png"} <= names


def test_plots_of_an_environment_with_a_namespace(capsys: pytest.CaptureFixture[str]) -> None:
    run = Path("logs", "grpo", "MinAtar-Breakout-v1_1")
    run.mkdir(parents=True)
    np.savez(run / "evaluations.npz", timesteps=np.arange(1, 4), results=np.ones((3, 2)), ep_lengths=np.ones((3, 2)))
    assert main(["plot", "all_plots", "-a", "grpo", "-e", "MinAtar/Breakout-v1", "-f", "logs", "--no-display"]) == 0
    assert "MinAtar-Breakout-v1" in capsys.readouterr().out


@pytest.mark.parametrize("algo", ["grpo", "dapo"])
@pytest.mark.parametrize(
    ("advantage", "unit", "normalized"), [("gae", "n_steps", True), ("gae", "n_groups", False), ("outcome", "n_groups", False)]
)
def test_trial_becomes_a_configuration(algo: str, advantage: str, unit: str, normalized: bool) -> None:
    fixed = {"advantage": advantage, "normalize_observations": normalized, "unit": unit}
    sampler = optuna.samplers.PartialFixedSampler(fixed, optuna.samplers.RandomSampler(seed=0))
    trial = optuna.create_study(sampler=sampler).ask()
    sampled = HYPERPARAMS_SAMPLER[algo](trial, 0, 1, {})
    converted = HYPERPARAMS_CONVERTER[algo](trial.params)
    rate = converted.pop("learning_rate")
    sampled_rate = sampled.pop("learning_rate")
    assert sampled == converted
    assert (sampled_rate(1.0) if callable(sampled_rate) else sampled_rate) == float(str(rate).removeprefix("lin_"))
    assert converted["clip_range_high"] >= converted["clip_range"]
    policy_kwargs = converted["policy_kwargs"]
    assert policy_kwargs["normalize_observations"] is normalized
    assert ("gae_lambda" in converted) == (advantage == "gae") == ("gae_lambda" in trial.user_attrs)
    # Whatever the entry says
    whole = {"loss_average": "episode", "overlong_filter": True}
    entry = {"n_steps": 32} if unit == "n_groups" else {"n_groups": 4} | whole
    model = ALGOS[algo]("MlpPolicy", "CartPole-v1", device="cpu", **{**entry, **sampled})
    assert (model.n_steps is None, model.n_groups is None) == (unit != "n_steps", unit == "n_steps")


@pytest.mark.parametrize("algo", ["grpo", "dapo"])
def test_first_trial_of_a_study_can_be_trained(algo: str, capsys: pytest.CaptureFixture[str]) -> None:
    study = ("--storage", "sqlite:///trials.db", "--study-name", "study")
    # Small enough for an update
    small = {"group_size_pow": 1, "advantage": "gae", "unit": "n_groups", "n_groups_pow": 1}
    optuna.create_study(storage=study[1], study_name=study[3], direction="maximize").enqueue_trial(small)
    assert train(*TRIALS, "-n", "600", "--n-trials", "1", *study, "-params", "n_envs:4", algo=algo) == 0
    trial = optuna.load_study(study_name="study", storage="sqlite:///trials.db").trials[0]
    assert trial.state == TrialState.COMPLETE
    assert train("-n", "200", "--eval-freq", "-1", *study, "--trial-id", "0", "-params", "n_envs:4", algo=algo) == 0
    model = ALGOS[algo].load(f"logs/{algo}/CartPole-v1_2/CartPole-v1.zip")
    assert (model.group_size, model.gamma) == (trial.user_attrs["group_size"], trial.user_attrs["gamma"])
    assert train("-n", "200", *study, "--trial-id", "5", algo=algo) == 2
    assert train("-n", "200", "--trial-id", "0", algo=algo) == 2
    errors = capsys.readouterr().err
    assert "No trial 5 of study 'study'" in errors and "--storage and --study-name" in errors


@pytest.mark.parametrize("algo", ["grpo", "dapo"])
def test_trials_of_an_entry_with_whole_episodes_have_whole_groups(algo: str) -> None:
    study = ("--storage", "sqlite:///trials.db", "--study-name", "study")
    drawn = {"group_size_pow": 1, "advantage": "gae", "unit": "n_steps", "n_steps_pow": 5, "n_groups_pow": 1}
    optuna.create_study(storage=study[1], study_name=study[3], direction="maximize").enqueue_trial(drawn)
    assert (
        train(*TRIALS, "-n", "600", "--n-trials", "1", *study, "-params", "n_envs:4", "ratio_level:'episode'", algo=algo) == 0
    )
    trial = optuna.load_study(study_name="study", storage=study[1]).trials[0]
    assert trial.state == TrialState.COMPLETE and trial.user_attrs["n_groups"] == 2


def test_trial_ends_with_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []

    def sample(trial: optuna.Trial, *_: Any) -> dict[str, Any]:
        # Enough for one rollout, but not for two
        return {"group_size": 8, "n_groups": 2}

    def note(model: DAPO, *args: Any, **kwargs: Any) -> DAPO:
        learn(model, *args, **kwargs)
        steps.append(model.num_timesteps)
        return model

    learn = DAPO.learn
    monkeypatch.setattr(DAPO, "learn", note)
    monkeypatch.setitem(HYPERPARAMS_SAMPLER, "dapo", sample)
    assert train(*TRIALS, "-n", "600", "--n-trials", "1", "--seed", "0", "-params", "n_envs:4") == 0
    assert steps == [600]


def test_trial_without_an_update_is_pruned(monkeypatch: pytest.MonkeyPatch) -> None:
    def sample(trial: optuna.Trial, *_: Any) -> dict[str, Any]:
        # Nobody falls within 5 steps: all returns are equal
        dead = {"group_size": 2, "n_groups": 2, "max_sampling_rounds": 1}
        return [{"group_size": 16, "n_groups": 16}, dead, dead | {"dynamic_sampling": False}][trial.number]

    monkeypatch.setitem(HYPERPARAMS_SAMPLER, "dapo", sample)
    study = ("--storage", "trials.log", "--study-name", "study", "--env-kwargs", "max_episode_steps:5")
    assert train(*TRIALS, "-n", "400", "--n-trials", "3", *study, "-params", "n_envs:4") == 0
    too_large, dead, updated = trials = load("trials.log").trials
    assert [trial.state for trial in trials] == [TrialState.PRUNED, TrialState.PRUNED, TrialState.COMPLETE]
    reason = "the first rollout did not end within 400 steps: a smaller n_steps, group_size or n_groups, or more steps"
    assert reason in too_large.user_attrs["pruned_because"]
    assert "in dead groups" in dead.user_attrs["pruned_because"] and "pruned_because" not in updated.user_attrs


def test_impossible_trials_are_pruned_and_say_why(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def sample(trial: optuna.Trial, *_: Any) -> dict[str, Any]:
        # In the constructor, and in the middle of the training
        too_large = {"policy_kwargs": {"net_arch": [10**17]}}
        return [{"group_size": 1}, {"learning_rate": float("nan")}, too_large, {}][trial.number]

    monkeypatch.setitem(HYPERPARAMS_SAMPLER, "grpo", sample)
    study = ("--storage", "trials.log", "--study-name", "study")
    assert train(*TRIALS, "-n", "400", "--n-trials", "4", *study, "-params", *SMALL, algo="grpo") == 0
    first, second, third, fourth = trials = load("trials.log").trials
    assert [trial.state for trial in trials] == [TrialState.PRUNED] * 3 + [TrialState.COMPLETE]
    assert first.user_attrs["pruned_because"].startswith("ValueError: group_size must be at least 2")
    assert "nan" in second.user_attrs["pruned_because"] and "pruned_because" not in fourth.user_attrs
    assert "allocate memory" in third.user_attrs["pruned_because"]
    assert "Trial 0 was pruned. ValueError: group_size must" in capsys.readouterr().out


def test_study_without_a_possible_trial_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert train(*TRIALS, "-n", "200", "--n-trials", "2", "-params", *SMALL, "ref_update_interval:5") == 2
    assert "No trial was completed, so there is no best one. 2 x ValueError: ref_update_interval=5" in capsys.readouterr().err


def test_workers_make_a_database_at_the_same_moment(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(make_tables, [storage] * 8))
    assert optuna.get_all_study_names(storage) == []
    with pytest.raises(UsageError, match="--storage sqlite:////no/such/folder"):
        make_tables("sqlite:////no/such/folder/study.db")
    with pytest.raises(UsageError, match=r"its driver is not installed .*pip install"):
        make_tables("postgresql+pg8000://user@localhost/name")


def test_environment_of_a_module_and_unknown_commands(capsys: pytest.CaptureFixture[str]) -> None:
    # Not always Python's own: who starts the tests in the background of a script may have it ignored
    interrupt = signal.getsignal(signal.SIGINT)
    arguments = ["train", "--algo", "grpo", "--env", "sb3_grpo:sb3_grpo/VerifierText-v0", "-n", "50", "--eval-freq", "-1"]
    small = ["n_envs:4", "n_groups:2", "group_size:2", "callback:None"]
    assert main([*arguments, "--num-threads", "1", "-params", *small]) == 0
    assert Path("logs/grpo/sb3_grpo-VerifierText-v0_1/sb3_grpo-VerifierText-v0.zip").exists()
    assert main(["train", "--env", "no_such_module:Env-v0"]) == 2
    assert main(["tain"]) == 2
    errors = capsys.readouterr().err
    assert "there is no module 'no_such_module'" in errors and "Unknown command 'tain'" in errors
    assert signal.getsignal(signal.SIGINT) is interrupt


@pytest.mark.parametrize("option", [["--env", "PongNoFrameskip-v4"], ["--env=ALE/Pong-v5"]])
def test_atari_without_its_extra(
    option: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    assert main(["train", "--algo", "dapo", *option]) == 2
    assert 'pip install "sb3-grpo[atari]"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("train", ["--env", "CartPol-v1"], "CartPol-v1 not found in gym registry, you maybe meant CartPole-v1?"),
        ("train", ["-params", "n_group:3"], "DAPO has no hyperparameter n_group, you maybe meant n_groups?"),
        ("train", ["-params", "zzz:3"], "DAPO has no hyperparameter zzz, but policy, env, learning_rate,"),
        ("train", ["-params", "group_size:1", "--vec-env", "dummy"], "group_size must be at least 2, got 1"),
        ("train", ["-params", "group_size=8"], "Options like -params take name:value, each value as in Python"),
        ("train", ["-params", "policy:MlpPolicy"], "name 'MlpPolicy' is not defined. Options like -params take"),
        ("train", ["-conf", "nowhere.yml"], "--conf-file nowhere.yml: that is neither a file that ends in"),
        (
            "train",
            ["-conf", "no.where"],
            "--conf-file no.where: that is neither a file that ends in .yml, .yaml or .py nor a module",
        ),
        (
            "train",
            ["-conf", "spoiled.yml"],
            "This is not YAML (the file of --conf-file, or one next to a trained agent): while parsing a flow sequence",
        ),
        ("train", ["-conf", "other.yml"], "Hyperparameters not found for dapo-CartPole-v1 in other.yml"),
        ("train", ["-i", "nowhere.zip"], "--trained-agent: The trained_agent must be a valid path to a .zip file"),
        ("train", ["-n", "-5"], "--n-timesteps -5 is less than one step"),
        ("train", ["-conf", "short.yml"], "The entry of dapo for CartPole-v1 in short.yml has no n_timesteps"),
        ("train", ["-conf", "empty.yml"], "--conf-file empty.yml: hyperparameters are written ENVIRONMENT:"),
        ("train", ["-conf", "none.yml"], "--conf-file none.yml: hyperparameters are written ENVIRONMENT:"),
        ("train", ["-conf", "text.yml"], "n_timesteps must be a finite number, got '1e5' (str): write n_timesteps="),
        ("train", ["-params", "n_envs:0"], "The entry of dapo for CartPole-v1: n_envs must be at least 1, got 0"),
        ("train", ["-params", "env_kwargs:3"], "env_kwargs must be a dictionary of keyword arguments"),
        ("train", ["--env-kwargs", "gravity:1"], "got an unexpected keyword argument 'gravity'"),
        ("train", ["-params", "learning_rate:'lin_abc'"], "learning_rate: 'lin_abc' is no schedule; write lin_0.001"),
        ("train", ["-params", "clip_range_high:'linear'"], "clip_range_high: 'linear' is no schedule"),
        ("train", ["-params", "clip_range:None"], "Invalid value for clip_range: None"),
        ("train", ["-f", "short.yml"], "A file or folder cannot be written or read: [Errno 20] Not a directory"),
        (
            "train",
            ["--trial-id", "0", "--study-name", "x", "--storage", "nowhere/x.log"],
            "--storage nowhere/x.log: [Errno 2]",
        ),
        ("train", ["--trial-id", "0", "--study-name", "x", "--storage", "nowhere"], "--storage nowhere: Could not parse"),
        (
            "train",
            ["--study-name", "x"],
            "--study-name has no effect without -optimize or --optimize-hyperparameters or --trial-id",
        ),
        ("train", ["--n-trials=5"], "--n-trials has no effect without -optimize"),
        ("train", ["-tags", "x"], "-tags has no effect without --track: leave it out, or give both"),
        ("train", ["--optimize", "--save-freq", "10"], "--save-freq has no effect in a search"),
        ("train", ["--optimize", "--n-evaluations", "0"], "--n-evaluations 0: the score of a trial needs one"),
        ("enjoy", [], "There is no such trained agent in the folder"),
        ("enjoy", [], "TRUST_REMOTE_CODE"),
        ("enjoy", ["-f", "nowhere"], "The nowhere/dapo folder was not found. Agents are in"),
    ],
)
def test_mistakes_are_named_without_a_traceback(
    command: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("spoiled.yml").write_text("Acrobot-v1: [1")
    Path("short.yml").write_text("CartPole-v1: {n_envs: 1, policy: MlpPolicy}")
    Path("text.yml").write_text("CartPole-v1: {n_timesteps: 1e5, policy: MlpPolicy}")
    Path("empty.yml").touch()
    Path("none.yml").write_text("CartPole-v1:")
    Path("other.yml").write_text("Acrobot-v1: {n_timesteps: 1}")
    assert main([command, "--algo", "dapo", "--env", "CartPole-v1", *arguments]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_a_progress_bar_hides_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    wrapper = "env_wrapper:'gymnasium.wrappers.NormalizeObservation'"
    assert main(["train", "--algo", "dapo", "--env", "CartPole-v1", "-P", "-params", wrapper]) == USAGE_ERROR
    assert "NormalizeObservation changes with everything it has seen" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(("package", "options"), [("wandb", ["--track"]), ("tensorboard", ["-tb", "tb"])])
def test_loggers_that_are_not_installed(
    package: str, options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr("stable_baselines3.common.utils.SummaryWriter", None)
    assert train(*options, "-n", "100", "-params", "n_envs:1", algo="ppo") == 2
    assert "install" in capsys.readouterr().err


def test_ctrl_c_outside_of_the_training_has_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(_COMMANDS, "enjoy", interrupted)
    assert main(["enjoy"]) == 130
    assert "Interrupted" in capsys.readouterr().err


def test_errors_of_others_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled() -> None:
        raise TypeError("Robot.__init__() got an unexpected keyword argument 'n_group'")

    monkeypatch.setitem(_COMMANDS, "train", spoiled)
    with pytest.raises(TypeError, match="Robot"):
        main(["train"])
