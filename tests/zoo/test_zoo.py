import inspect
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch as th

pytest.importorskip("rl_zoo3")

import optuna
import yaml
from optuna.trial import TrialState
from rl_zoo3 import ALGOS
from rl_zoo3.hyperparams_opt import HYPERPARAMS_CONVERTER, HYPERPARAMS_SAMPLER
from stable_baselines3 import SAC, HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_grpo import DAPO, GRPO
from sb3_grpo.console import USAGE_ERROR
from sb3_grpo.groups.faults import EnvironmentFault
from sb3_grpo.zoo.cli import _COMMANDS, main
from sb3_grpo.zoo.evaluation import MaskedEvalCallback
from sb3_grpo.zoo.search_space import first_trial

ROOT = Path(__file__).resolve().parents[2]
CARTPOLE = ("--env", "CartPole-v1", "--num-threads", "1", "--device", "cpu")
SMALL = ("n_envs:4", "group_size:2", "n_groups:2")
pytestmark = pytest.mark.usefixtures("empty_folder")
TRIALS = ("--optimize", "--n-startup-trials", "1", "--n-evaluations", "1", "--eval-episodes", "1", "--no-optim-plots")


def train(*arguments: str, algo: str = "dapo") -> int:
    return main(["train", "--algo", algo, *CARTPOLE, *arguments])


def load(storage: str) -> optuna.Study:
    backend = optuna.storages.journal.JournalFileBackend(storage)
    return optuna.load_study(study_name="study", storage=optuna.storages.JournalStorage(backend))


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


def test_missing_extra_is_named(tmp_path: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.modules['rl_zoo3'] = None; import sb3_grpo.zoo"
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert 'RL Baselines3 Zoo needs rl_zoo3, which is not installed: pip install "sb3-grpo[zoo]"' in result.stderr


def test_training_leaves_what_the_zoo_leaves(trained: Path) -> None:
    run = trained / "dapo" / "CartPole-v1_1"
    names = {path.name for path in run.iterdir()}
    assert {"CartPole-v1.zip", "best_model.zip", "evaluations.npz", "0.monitor.csv"} <= names
    assert "rl_model_200_steps.zip" in names and "checkpoints" not in names
    assert (run / "CartPole-v1" / "vecnormalize.pkl").exists()
    assert list((trained / "tb").rglob("events.out*"))
    config = yaml.load((run / "CartPole-v1" / "config.yml").read_text(), Loader=yaml.UnsafeLoader)
    assert config["n_timesteps"] == 600 and config["clip_range_high"] == "lin_0.28"
    model = DAPO.load(run / "CartPole-v1.zip")
    assert model.clip_range_high(0.5) == 0.14 and model.clip_range(0.5) == 0.1
    assert model.observation_space.shape == (8,) and model._n_updates > 0


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
    # The same as sb3-grpo train has it
    given = ("--preset", "gspo", "--set", "ent_coef=0.01", "--set", "advantage_scale=batch", "--hyperparam", "group_size:4")
    given = (*given, "--set", "policy_kwargs=dict(activation_fn=torch.nn.ReLU)")
    assert train(*options, *given, algo="grpo") == 0
    model = GRPO.load("logs/grpo/CartPole-v1_2/CartPole-v1.zip")
    assert (model.ratio_level, model.ent_coef, model.advantage_scale, model.group_size) == ("episode", 0.01, "batch", 4)
    assert model.policy_kwargs["activation_fn"] is th.nn.ReLU
    assert train("-n", "100", "-params", "preset:'gspo'", algo="ppo") == 2
    assert "settings of grpo and dapo, not of ppo" in capsys.readouterr().err


def test_a_value_may_be_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path.cwd())
    flip = "gym.register('Flip-v0', 'stable_baselines3.common.envs:BitFlippingEnv', kwargs={'continuous': True})"
    Path("flip.py").write_text(f"import gymnasium as gym\n{flip}")
    Path("flip.yml").write_text("Flip-v0: {policy: MultiInputPolicy, n_timesteps: 60, learning_starts: 50}")
    options = ("--conf-file", "flip.yml", "--eval-freq", "-1", "--set", "replay_buffer_class=HerReplayBuffer")
    assert main(["train", "--algo", "sac", "--env", "flip:Flip-v0", *options]) == 0
    model = SAC.load("logs/sac/Flip-v0_1/Flip-v0.zip", gym.make("Flip-v0"))
    assert model.replay_buffer_class is HerReplayBuffer


def test_what_is_set_is_what_enjoy_reads() -> None:
    assert train("-n", "200", "--eval-freq", "-1", "--set", "normalize=True", "--set", "n_steps=64", algo="ppo") == 0
    assert main(["enjoy", "--algo", "ppo", *CARTPOLE, "--no-render", "-n", "50"]) == 0


def test_callbacks_of_an_evaluation_get_the_model() -> None:
    class Child(BaseCallback):
        def _on_step(self) -> bool:
            got.append(self.model)
            return True

    got: list[Any] = []
    model = GRPO("MlpPolicy", "CartPole-v1", n_envs=2, n_steps=16)
    env = DummyVecEnv([lambda: gym.make("CartPole-v1")])
    model.learn(32, MaskedEvalCallback(env, n_eval_episodes=1, eval_freq=8, callback_after_eval=Child(), verbose=0))
    assert got and all(each is model for each in got)


def test_enjoy_takes_the_latest_run_that_has_a_model(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["enjoy", "--algo", "dapo", *CARTPOLE, "-f", str(trained), "--no-render", "-n", "300"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "CartPole-v1_2/CartPole-v1.zip" in printed and "Mean reward" in printed
    assert main([*arguments, "--load-best", "--exp-id", "1"]) == 0
    assert "CartPole-v1_1/best_model.zip" in capsys.readouterr().out


MASKED = ("--env", "InvalidActionEnvDiscrete-v0")
SHORT = ("-params", "n_envs:2", "env_kwargs:dict(ep_length=10)")


@pytest.mark.parametrize(("algo", "params"), [("grpo", SMALL[1:]), ("ppo_mask", ("n_steps:32", "batch_size:32"))])
def test_evaluation_and_enjoy_only_do_what_is_allowed(
    algo: str, params: tuple[str, ...], strict: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("-n", "200", "--eval-freq", "100", *MASKED, *SHORT, *params, algo=algo) == 0
    assert len({id(env) for env in strict}) == 3, "two copies for training, and one for evaluation"
    strict.clear()
    assert main(["enjoy", "--algo", algo, *MASKED, "--no-render", "-n", "100", "--stochastic"]) == 0
    assert len(strict) == 100 and "Mean reward" in capsys.readouterr().out
    assert ALGOS["grpo"] is GRPO


def test_trials_only_do_what_is_allowed(strict: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HYPERPARAMS_SAMPLER, "grpo", lambda *_: {})
    study = ("--storage", "trials.log", "--study-name", "study")
    assert train(*TRIALS, "-n", "200", "--n-trials", "1", *study, *MASKED, *SHORT, *SMALL[1:], algo="grpo") == 0
    assert [trial.state for trial in load("trials.log").trials] == [TrialState.COMPLETE] and strict


def test_benchmark_knows_the_algorithms_in_its_processes(trained: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ("--benchmark-dir", "table", "--no-hub", "-n", "300", "--num-threads", "1")
    assert main(["benchmark", "--log-dir", str(trained), *options]) == 0
    row = Path("benchmark.md").read_text().splitlines()[-1]
    assert re.match(r"\|dapo\|CartPole-v1\| *[\d.]+\| *[\d.]+\|0k", row), row
    assert "Error during evaluation" not in capfd.readouterr().out


@pytest.mark.parametrize("algo", ["grpo", "dapo"])
@pytest.mark.parametrize("unit", ["default", "n_steps", "n_groups"])
def test_trial_becomes_a_configuration(algo: str, unit: str) -> None:
    fixed = {} if unit == "n_groups" else {"unit": unit}
    sampler = optuna.samplers.PartialFixedSampler(fixed, optuna.samplers.RandomSampler(seed=0))
    trial = optuna.create_study(sampler=sampler).ask()
    trial.set_user_attr("whole_groups", unit == "n_groups")
    sampled = HYPERPARAMS_SAMPLER[algo](trial, 0, 1, {})
    converted = HYPERPARAMS_CONVERTER[algo](trial.params)
    rate = converted.pop("learning_rate")
    sampled_rate = sampled.pop("learning_rate")
    assert sampled == converted
    assert (sampled_rate(1.0) if callable(sampled_rate) else sampled_rate) == float(str(rate).removeprefix("lin_"))
    assert converted["advantage"] == "gae" and "gae_lambda" in trial.user_attrs
    # Whatever the entry says
    whole = {"loss_average": "episode", "overlong_filter": True}
    entry = {"batch_size": 128} | ({"n_steps": 32} if unit == "n_groups" else {"n_groups": 4} | whole)
    model = ALGOS[algo]("MlpPolicy", "CartPole-v1", device="cpu", **{**entry, **sampled})
    assert (model.n_steps is None, model.n_groups is None) == ((True, False) if unit == "n_groups" else (False, True))
    # What is not searched
    assert model.batch_size == 128


@pytest.mark.parametrize("algo", ["grpo", "dapo"])
def test_a_pretrained_model_has_a_search_space_of_its_own(algo: str) -> None:
    trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0)).ask()
    trial.set_user_attr("policy", "CausalLMPolicy")
    sampled = HYPERPARAMS_SAMPLER[algo](trial, 0, 1, {})
    assert sampled.keys() <= inspect.signature(ALGOS[algo]).parameters.keys()
    assert sampled["n_steps"] is None and sampled["n_epochs"] <= 4
    # The model, and what its policy has as defaults
    assert not sampled.keys() & {"policy_kwargs", "gamma", "advantage", "ent_coef"}


@pytest.mark.parametrize("policy", ["MlpLstmPolicy", "MlpPolicy"])
def test_the_size_of_the_memory_is_searched(policy: str) -> None:
    fixed = {"unit": "n_steps", "lstm_hidden_size": 16}
    trial = optuna.create_study(sampler=optuna.samplers.PartialFixedSampler(fixed, optuna.samplers.RandomSampler())).ask()
    trial.set_user_attr("policy", policy)
    sampled = HYPERPARAMS_SAMPLER["grpo"](trial, 0, 1, {})
    model = GRPO(policy, "CartPole-v1", device="cpu", **sampled)
    assert getattr(model.policy, "lstm_hidden_size", None) == (16 if policy == "MlpLstmPolicy" else None)


@pytest.mark.parametrize("algo", ["grpo", "dapo"])
def test_first_trial_of_a_study_can_be_trained(algo: str, capsys: pytest.CaptureFixture[str]) -> None:
    study = ("--storage", "sqlite:///trials.db", "--study-name", "study")
    # Small enough for an update
    small = {"group_size_pow": 1, "unit": "n_steps", "n_steps_pow": 5}
    optuna.create_study(storage=study[1], study_name=study[3], direction="maximize").enqueue_trial(small)
    assert train(*TRIALS, "-n", "600", "--n-trials", "1", *study, "-params", "n_envs:4", algo=algo) == 0
    trial = optuna.load_study(study_name="study", storage="sqlite:///trials.db").trials[0]
    assert trial.state == TrialState.COMPLETE
    assert train("-n", "200", "--eval-freq", "-1", *study, "--trial-id", "0", "-params", "n_envs:4", algo=algo) == 0
    model = ALGOS[algo].load(f"logs/{algo}/CartPole-v1_2/CartPole-v1.zip")
    assert (model.group_size, model.gamma) == (trial.user_attrs["group_size"], trial.user_attrs["gamma"])
    assert train("-n", "200", *study, "--trial-id", "5", algo=algo) == 2
    assert train("-n", "200", "--trial-id", "0", algo=algo) == 2
    assert train("-n", "200", "--storage", "other.log", "--study-name", "study", "--trial-id", "0", algo=algo) == 2
    errors = capsys.readouterr().err
    assert "No trial 5 of study 'study'" in errors and "--storage and --study-name" in errors
    assert "--storage other.log: there is no such file" in errors and not Path("other.log").exists()


@pytest.mark.parametrize("algo", ["ppo", "grpo", "dapo"])
def test_a_study_begins_with_the_defaults_and_says_the_time_left(algo: str, capsys: pytest.CaptureFixture[str]) -> None:
    study = ("--storage", "trials.log", "--study-name", "study", "-params", "n_envs:16")
    assert train(*TRIALS, "-n", "4200", "--n-trials", "2", *study, algo=algo) == 0
    printed = capsys.readouterr().out
    assert "1 of 2 trials, about " in printed
    first, second = load("trials.log").trials
    assert second.params != first.params and "log_std_init" not in first.params
    params = HYPERPARAMS_CONVERTER[algo](first.params)
    found = ALGOS[algo]("MlpPolicy", "CartPole-v1", device="cpu", **params)
    usual = ALGOS[algo]("MlpPolicy", "CartPole-v1", device="cpu", **({"n_steps": 128} if algo == "ppo" else {}))
    for name in ("learning_rate", "n_steps", "batch_size", "n_epochs", "gamma", "gae_lambda", "max_grad_norm"):
        assert getattr(found, name) == pytest.approx(getattr(usual, name)), name
    assert str(found.policy) == str(usual.policy) and found.ent_coef == pytest.approx(0.0, abs=2e-6)
    if algo != "ppo":
        known = ("group_size", "n_groups", "advantage", "loss_average", "overlong_filter")
        assert [getattr(found, name) for name in known] == [getattr(usual, name) for name in known]


def test_with_masks_ppo_has_the_same_first_trial() -> None:
    assert first_trial("ppo_mask", "MlpPolicy", 16) == first_trial("ppo", "MlpPolicy", 16) != {}


def test_what_a_study_of_continuous_actions_has_in_addition() -> None:
    study = ("--storage", "trials.log", "--study-name", "study", "-params", "n_envs:4")
    assert main(["train", "--algo", "grpo", "--env", "Pendulum-v1", *TRIALS, "-n", "2100", "--n-trials", "2", *study]) == 0
    first, second = (trial.params for trial in load("trials.log").trials)
    # Searched only for continuous actions
    assert first["log_std_init"] == 0.0 > second["log_std_init"]
    assert HYPERPARAMS_CONVERTER["grpo"](second)["policy_kwargs"]["log_std_init"] == second["log_std_init"]


def test_no_trial_takes_more_steps_for_an_update_than_there_are() -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(60):
        trial = study.ask()
        trial.set_user_attr("steps_per_copy", 1250)
        sampled = HYPERPARAMS_SAMPLER["grpo"](trial, 0, 1, {})
        assert sampled["n_steps"] is None or 4 * sampled["n_steps"] <= 1250


@pytest.mark.parametrize("study", [(), ("--storage", "sqlite:///trials.db", "--study-name", "study")])
def test_a_study_in_which_nothing_fits_says_so(
    study: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(HYPERPARAMS_SAMPLER, "dapo", lambda *_: {"group_size": 16, "n_groups": 16})
    # In a study, without trials of its own, too
    for n_trials in ("2", "0") if study else ("2",):
        assert train(*TRIALS, "-n", "400", "--n-trials", n_trials, *study, "-params", "n_envs:4") == USAGE_ERROR
        error = " ".join(capsys.readouterr().err.split())
        assert "No trial has come to its end" in error
        assert ("pruned, ValueError: no update within 400 steps (or all groups were dead)" in error) is (n_trials == "2")


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
    for each in too_large, dead:
        assert "no update within 400 steps (or all groups were dead): give" in each.user_attrs["pruned_because"]
    assert "pruned_because" not in updated.user_attrs


def test_a_trial_of_ppo_without_an_update_is_pruned_too(capsys: pytest.CaptureFixture[str]) -> None:
    # Its defaults: 128 steps of 16 copies
    assert train(*TRIALS, "-n", "2000", "--n-trials", "1", "-params", "n_envs:16", algo="ppo") == 2
    assert "pruned, ValueError: no update within 2000 steps: give" in " ".join(capsys.readouterr().err.split())


def test_a_study_of_something_else_does_not_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for algo in "grpo", "dapo":
        monkeypatch.setitem(HYPERPARAMS_SAMPLER, algo, lambda *_: {})
    study = ("--storage", "logs/trials.log", "--study-name", "study", "--n-trials", "1", "-params", *SMALL)
    assert train(*TRIALS, "-n", "400", *study, algo="grpo") == 0
    assert train(*TRIALS, "-n", "400", *study, algo="dapo") == USAGE_ERROR
    assert train(*TRIALS, "-n", "800", *study, algo="grpo") == USAGE_ERROR
    error = " ".join(capsys.readouterr().err.split())
    assert "a study of grpo on CartPole-v1, 400 steps, not of dapo on CartPole-v1, 400 steps. Choose another name" in error
    assert len(load("logs/trials.log").trials) == 1


def test_a_search_names_its_best_trials_and_draws_others_when_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def sample(trial: optuna.Trial, *_: Any) -> dict[str, Any]:
        return {"learning_rate": trial.suggest_float("learning_rate", 1e-5, 2e-3)}

    def evaluate(model: Any, *arguments: Any, **named: Any) -> tuple[list[float], list[int]]:
        # Often 0
        return [min(0.0, 1e-3 - model.learning_rate)], [1]

    monkeypatch.setattr("stable_baselines3.common.callbacks.evaluate_policy", evaluate)
    monkeypatch.setitem(HYPERPARAMS_SAMPLER, "grpo", sample)
    study = ("--storage", "trials.log", "--study-name", "study", "--seed", "1", "--pruner", "none", "-params", *SMALL)
    # Drawn at random
    options = (*TRIALS, "--n-startup-trials", "10", "-n", "400", *study)
    assert train(*options, "--n-trials", "1", algo="grpo") == 0
    assert "Best trials" not in capsys.readouterr().out
    for n_trials in "2", "3", "0":
        assert train(*options, "--n-trials", n_trials, algo="grpo") == 0
    trials = load("trials.log").trials
    assert len({trial.params["learning_rate"] for trial in trials}) == 6
    values = {trial.number: trial.value for trial in trials}
    # Without the defaults
    best = sorted({*values} - {0}, key=lambda number: -values[number])[:3]  # type: ignore[operator]
    found = re.findall(r"Best trials: (\d) \(.*?\), (\d) \(.*?\), (\d) \(", " ".join(capsys.readouterr().out.split()))
    assert len(found) == 2 and [*map(int, found[-1])] == best


def test_the_defaults_come_first_also_after_an_interruption() -> None:
    study = ("--storage", "sqlite:///trials.db", "--study-name", "study")
    begun = optuna.create_study(storage=study[1], study_name=study[3], direction="maximize")
    begun.tell(begun.ask(), state=TrialState.FAIL)
    assert train(*TRIALS, "-n", "4200", "--n-trials", "2", *study, "-params", "n_envs:4", algo="grpo") == 0
    _, second, third = optuna.load_study(study_name="study", storage=study[1]).trials
    assert second.params["learning_rate"] == 1e-3 != third.params["learning_rate"]


def test_impossible_trials_are_pruned_and_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_trials_that_were_interrupted_are_not_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(HYPERPARAMS_SAMPLER, "grpo", lambda *_: {})
    study = ("--storage", "sqlite:///trials.db", "--study-name", "study")
    begun = optuna.create_study(storage=study[1], study_name=study[3], direction="maximize")
    begun.tell(begun.ask(), state=TrialState.FAIL)
    assert train(*TRIALS, "-n", "400", "--max-total-trials", "2", *study, "-params", *SMALL, algo="grpo") == 0
    printed = capsys.readouterr().out
    assert "1 of 2 trials, about" in printed and "2 of 2 trials" not in printed


def test_the_time_left_is_that_of_this_worker(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def sample(trial: optuna.Trial, *_: Any) -> dict[str, Any]:
        # What another worker does meanwhile
        trial.study.add_trial(optuna.trial.create_trial(value=0.0))
        return {}

    monkeypatch.setitem(HYPERPARAMS_SAMPLER, "grpo", sample)
    assert train(*TRIALS, "-n", "400", "--n-trials", "2", "-params", *SMALL, algo="grpo") == 0
    printed = capsys.readouterr().out
    assert "1 of 2 trials, about" in printed and "2 of 2 trials" not in printed


def test_a_fault_of_the_environment_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(env: Any, action: Any) -> Any:
        raise KeyError("rudder")

    monkeypatch.setattr("gymnasium.envs.classic_control.CartPoleEnv.step", step)
    monkeypatch.setitem(HYPERPARAMS_SAMPLER, "grpo", lambda *_: {})
    with pytest.raises(EnvironmentFault, match="rudder"):
        train(*TRIALS, "-n", "400", "--n-trials", "2", "-params", *SMALL, algo="grpo")


def test_ctrl_c_in_a_search_shows_no_traceback(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def step(env: Any, action: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("gymnasium.envs.classic_control.CartPoleEnv.step", step)
    optuna.logging.enable_propagation()
    try:
        train(*TRIALS, "-n", "400", "--n-trials", "2", "-params", *SMALL, algo="grpo")
    finally:
        optuna.logging.disable_propagation()
    failed = [record for record in caplog.records if "KeyboardInterrupt" in record.message]
    assert failed and not any(record.exc_info for record in failed)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "own.yml: There is no entry CartPole-v1 or default. Entries are: none"),
        ("Acrobot-v1: {policy: MlpPolicy}", "own.yml: There is no entry CartPole-v1 or default. Entries are: Acrobot-v1"),
        ("CartPole-v1:", "own.yml: the entry CartPole-v1 is empty"),
        ("CartPole-v1: {policy: MlpPolicy}", "n_timesteps has to be a number, such as 100000, not None"),
        ("CartPole-v1: {policy: MlpPolicy, n_timesteps: 1e5}", "n_timesteps has to be a number, such as 100000, not '1e5'"),
        ("CartPole-v1: {n_timesteps: '100'}", "grpo for CartPole-v1 have no policy: write policy: MlpPolicy"),
    ],
)
def test_what_is_missing_in_a_configuration(text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("own.yml").write_text(text)
    assert train("--conf-file", "own.yml", algo="grpo") == 2
    assert said in capsys.readouterr().err


def test_environment_of_a_module_and_unknown_commands(capsys: pytest.CaptureFixture[str]) -> None:
    # Not always Python's own: who starts the tests in the background of a script may have it ignored
    interrupt = signal.getsignal(signal.SIGINT)
    arguments = ["train", "--algo", "grpo", "--env", "sb3_grpo:sb3_grpo/VerifierText-v0", "-n", "50", "--eval-freq", "-1"]
    small = ["n_envs:4", "n_groups:2", "group_size:2", "callback:None"]
    assert main([*arguments, "--num-threads", "1", "-params", *small]) == 0
    assert Path("logs/grpo/sb3_grpo-VerifierText-v0_1/sb3_grpo-VerifierText-v0.zip").exists()
    assert main(["train", "--env", "no_such_module:Env-v0"]) == 2
    with pytest.raises(SystemExit):
        main(["tain"])
    errors = capsys.readouterr().err
    assert "cannot import no_such_module" in errors and "invalid choice: 'tain'" in errors
    assert signal.getsignal(signal.SIGINT) is interrupt


def test_videos_of_environments_of_ones_own(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(subprocess, "call", lambda command, **_: called.append(command))
    monkeypatch.setattr("shutil.which", lambda program: program)
    with pytest.raises(AssertionError):
        main(["record_training", "--algo", "dapo", "--env", "json:CartPole-v1", "-f", str(trained)])
    assert "record_video" in called[0] and called[0][-2:] == ["--gym-packages", "json"]


def test_torchrun_is_sent_to_the_other_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "a", "WORLD_SIZE": "2", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert main(["train", "--algo", "dapo", "--env", "CartPole-v1"]) == 2
    assert "the RL Zoo runs in one process: with torchrun, use -m sb3_grpo train" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("train", ["--env", "CartPol-v1"], "Similar names: CartPole-v1"),
        ("train", ["-params", "n_group:3"], "DAPO.__init__() got an unexpected keyword argument 'n_group'"),
        ("train", ["-params", "group_size=8"], "Options like -params take name:value, each value as in Python"),
        ("train", ["-params", "preset:'grpo'"], "Unknown preset 'grpo', must be one of vpg, grpo-paper"),
        ("train", ["-conf", "nowhere.yml"], "No such file or directory: 'nowhere.yml'"),
        ("train", ["-conf", "spoiled.yml"], 'while parsing a flow sequence   in "spoiled.yml", line 1'),
        ("train", ["-i", "nowhere.zip"], "to continue with what a complete run has learned, name its ENV.zip"),
        ("train", ["-f", "short.yml"], "Not a directory: 'short.yml"),
        ("train", ["--trial-id", "0"], "--trial-id 0 needs the study it belongs to: --storage and --study-name"),
        ("train", ["--algo", "ppo_mask"], "Environment does not support action masking"),
        ("train", ["--env", "sb3_grpo/VerifierText-v0", "--env-kwargs", "task:'capital'"], "'capital'"),
        ("enjoy", [], "The logs/dapo folder was not found"),
        ("enjoy", ["--env", "sb3_grpo:qqqqqqq"], "sb3_grpo was imported, and does not register it"),
    ],
)
def test_mistakes_are_named_without_a_traceback(
    command: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("spoiled.yml").write_text("Acrobot-v1: [1")
    Path("short.yml").write_text("CartPole-v1: {n_envs: 1, policy: MlpPolicy}")
    assert main([command, "--algo", "dapo", "--env", "CartPole-v1", *arguments]) == USAGE_ERROR
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_errors_of_others_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled() -> None:
        raise TypeError("Robot.__init__() got an unexpected keyword argument 'n_group'")

    monkeypatch.setitem(_COMMANDS, "train", spoiled)
    with pytest.raises(TypeError, match="Robot"):
        main(["train"])
