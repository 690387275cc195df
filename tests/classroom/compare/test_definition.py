"""What a user writes: a file or options, checked before anything runs."""

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rl_zoo3")
pytest.importorskip("rliable")

from sb3_grpo import presets
from sb3_grpo.classroom.compare.definition import make_experiment, read_experiment
from sb3_grpo.classroom.compare.experiment import Experiment, merge
from sb3_grpo.classroom.compare.ready import ready_comparisons, ready_path
from sb3_grpo.cli import compare as cli_compare
from sb3_grpo.cli.main import _make_parser, main
from sb3_grpo.console import UsageError

TINY: dict[str, Any] = {"name": "tiny", "envs": ["CartPole-v1"], "variants": ["ppo"], "seeds": 2, "timesteps": 400}

PPO = ("--env", "CartPole-v1", "--algo", "ppo")

pytestmark = pytest.mark.usefixtures("empty_folder")


def test_factors_make_variants() -> None:
    variants = [
        {
            "algo": "dapo",
            "hyperparams": {"gamma": 1.0},
            "factors": {"group_size": [4, 8], "learning_rate": ["3e-4", "lin_1e-3"]},
        },
        {"name": "without clip-higher", "algo": "dapo", "hyperparams": {"clip_range_high": None}},
        "ppo",
    ]
    experiment = make_experiment(TINY | {"variants": variants, "timesteps": {"CartPole-v1": "1e3"}, "seeds": [5, 3]}, "test")
    assert [(name, hyperparams) for name, _, hyperparams in experiment.variants] == [
        ("dapo, group_size=4, learning_rate=3e-4", {"gamma": 1.0, "group_size": 4, "learning_rate": 3e-4}),
        ("dapo, group_size=4, learning_rate=lin_1e-3", {"gamma": 1.0, "group_size": 4, "learning_rate": "lin_1e-3"}),
        ("dapo, group_size=8, learning_rate=3e-4", {"gamma": 1.0, "group_size": 8, "learning_rate": 3e-4}),
        ("dapo, group_size=8, learning_rate=lin_1e-3", {"gamma": 1.0, "group_size": 8, "learning_rate": "lin_1e-3"}),
        ("without clip-higher", {"clip_range_high": None}),
        ("ppo", {}),
    ]
    assert experiment.timesteps == {"CartPole-v1": 1000} and experiment.seeds == [3, 5]
    assert len(experiment.jobs()) == 12


def test_presets_make_variants() -> None:
    variants = [
        "grpo",
        {"algo": "grpo", "preset": "grpo-paper"},
        {"name": "no KL", "algo": "grpo", "preset": "grpo-paper", "hyperparams": {"kl_coef": 0}},
        {"algo": "dapo", "preset": "gspo", "factors": {"group_size": [4, 8]}},
    ]
    experiment = make_experiment(TINY | {"variants": variants}, "test")
    found = {name: (algo, hyperparams) for name, algo, hyperparams in experiment.variants}
    assert list(found) == ["grpo", "grpo-paper", "no KL", "gspo, group_size=4", "gspo, group_size=8"]
    assert found["grpo-paper"] == ("grpo", presets.GRPO_PAPER)
    assert found["no KL"] == ("grpo", {**presets.GRPO_PAPER, "kl_coef": 0})
    assert found["gspo, group_size=8"] == ("dapo", {**presets.GSPO, "group_size": 8})


def test_contribs_algorithms_have_the_names_that_readers_know() -> None:
    variants = ["ppo_lstm", "ppo_mask", {"name": "masked", "algo": "ppo_mask"}]
    named = [variant.name for variant in make_experiment(TINY | {"variants": variants}, "test").variants]
    assert named == ["RecurrentPPO", "MaskablePPO", "masked"]


def test_small_budgets_have_fewer_evaluations_and_each_experiment_one_number() -> None:
    content = {key: value for key, value in TINY.items() if not key.startswith("n_")}

    def numbers(**changes: Any) -> tuple[int, int, int]:
        experiment = make_experiment(content | changes, "test")
        return experiment.n_evaluations, experiment.n_eval_episodes, experiment.n_final_episodes

    assert numbers(timesteps=30_000) == (10, 5, 20)
    assert numbers(timesteps=100_000) == (20, 10, 20)
    assert numbers(timesteps=30_000, n_eval_episodes=7) == (10, 7, 20)
    both = {"envs": ["CartPole-v1", "Acrobot-v1"], "timesteps": {"CartPole-v1": 30_000, "Acrobot-v1": 300_000}}
    assert numbers(**both) == (20, 10, 20)


def test_which_returns_count_is_written_down_before_anything_runs(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("minigrid")
    by_mode = {
        "deterministic": ["CartPole-v1", "Pendulum-v1"],
        "stochastic": ["KungFuMasterNoFrameskip-v4", "ALE/Pong-v5", "MiniGrid-Empty-Random-5x5-v0"],
    }
    envs = [env for each in by_mode.values() for env in each]
    # Of the environment alone: DQN learns from the most likely actions, PPO from sampled ones
    for variants in (["ppo"], ["dqn", "ppo"]):
        experiment = make_experiment(TINY | {"envs": envs[:1] + envs[2:], "variants": variants}, "test")
        assert experiment.main_modes == {env: mode for mode, each in by_mode.items() for env in each if env != "Pendulum-v1"}
    # And of environments that are added later
    more = make_experiment(TINY | {"envs": ["Pendulum-v1"], "variants": ["ppo"]}, "test")
    merge(experiment, more).save(tmp_path)
    assert Experiment.load(tmp_path).main_modes == {env: mode for mode, each in by_mode.items() for env in each}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"envs": ["CartPol-v1"]}, "CartPole-v1"),
        ({"variants": ["dapoo"]}, "there is no algorithm 'dapoo'. Did you mean dapo"),
        ({"variants": [{"algo": "ppo", "hyperparams": {"group_size": 4}}]}, "'ppo': there is no hyperparameter 'group_size'"),
        (
            {"variants": [{"algo": "dapo", "hyperparams": {"aux_vf_coef": 0.1}}]},
            "'dapo': dapo has no argument 'aux_vf_coef': write vf_coef",
        ),
        ({"variants": [{"algo": "dapo", "factors": {"group_size": 4}}]}, "the factor group_size must be a list"),
        ({"variants": [{"algo": "ppo", "hyperparams": {"n_timesteps": 5}}]}, "set timesteps instead"),
        ({"variants": [{"algo": "grpo", "preset": "grpo"}]}, "Unknown preset 'grpo', must be one of vpg, grpo-paper"),
        ({"variants": [{"algo": "ppo", "preset": "gspo"}]}, "presets are for dapo and grpo, not for ppo"),
        ({"variants": ["ppo", "ppo"]}, "'ppo' is there 2 times"),
        ({"variants": [{"name": "../ppo", "algo": "ppo"}]}, "becomes the name of a folder"),
        ({"envs": ["../CartPole-v1"]}, "becomes the name of a folder"),
        ({"variants": "ppo"}, "variants must be a list"),
        ({"timesteps": {"Acrobot-v1": 100}}, "there is no environment 'Acrobot-v1'"),
        ({"timesteps": {"CartPole-v1": 0}}, "must be a whole number from 1 to"),
        ({"timesteps": None}, "timesteps is missing"),
        ({"variants": [{"algo": "grpo", "name": None}]}, "name must be text, not None"),
        ({"seeds": float("nan")}, "my.yml: seeds must be a whole number from 1 to 10,000, not nan"),
        ({"variants": [{"algo": "ppo", "hyperparams": {"n_envs": 0}}]}, "n_envs must be a whole number from 1 to"),
        ({"seeds": [-1]}, "each of the seeds must be a whole number"),
        ({"n_evals": 3}, "there is no key 'n_evals'. Did you mean n_evaluations"),
    ],
)
def test_mistakes_are_explained(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        make_experiment(TINY | changes, "my.yml")
    assert message in str(error.value)


@pytest.mark.parametrize(
    "text",
    ["[]", "[" * 100_000, "a: 2020-99-99", "? [1, {}]\n: 2", "a: !!python/object/apply:os.system ['true']", "\xff\xfe\x00"],
)
def test_files_that_describe_nothing(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=r"mine.yml"):
        make_experiment(read_experiment(path), "mine.yml")


def test_a_variant_stays_as_it_was_written(tmp_path: Path) -> None:
    # YAML's aliases (*name) are one object; A2C puts its optimizer into the policy_kwargs that it gets
    shared = {"policy_kwargs": {"net_arch": [8]}}
    variants = [{"algo": algo, "hyperparams": shared} for algo in ("a2c", "ppo")]
    experiment = make_experiment(TINY | {"variants": variants}, "test")
    cli_compare._check(experiment)
    assert [hyperparams for _, _, hyperparams in experiment.variants] == [{"policy_kwargs": {"net_arch": [8]}}] * 2
    assert "RMSprop" not in experiment.hyperparams["CartPole-v1"]["ppo"]["policy_kwargs"]
    experiment.save(tmp_path)
    assert Experiment.load(tmp_path).variants == experiment.variants


@pytest.mark.parametrize(("text", "seeds"), [("3", [0, 1, 2]), ("0-1", [0, 1]), ("7-9", [7, 8, 9]), ("5-5", [5])])
def test_seeds_of_the_command_line(text: str, seeds: list[int]) -> None:
    args = _make_parser().parse_args(["compare", *PPO, "--seeds", text])
    assert cli_compare._experiment(args).seeds == seeds


def test_command_line_without_a_file() -> None:
    args = _make_parser().parse_args(
        ["compare", "--env", "CartPole-v1", "Acrobot-v1", "--algo", "ppo", "dapo", "--seeds", "3"]
    )
    experiment = cli_compare._experiment(args)
    assert experiment.name == "CartPole-v1_Acrobot-v1_ppo_dapo"
    assert experiment.timesteps == {"CartPole-v1": 100_000, "Acrobot-v1": 100_000}
    assert len(experiment.jobs()) == 12


@pytest.mark.parametrize("text", ["9-7", "0,1", "0"])
def test_seeds_that_are_none(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["compare", *PPO, "--seeds", text])
    assert f"must be a number of seeds, or a range such as 10-19 or 4-4, not '{text}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "package", "n_runs", "variants"),
    [
        ("class", "minatar", 24, ["ppo", "GRPO (paper)", "grpo", "dapo"]),
        ("homework", "gymnasium", 120, ["ppo", "GRPO (paper)", "grpo", "dapo"]),
        ("lunch", "ale_py", 8, ["ppo", "trpo", "grpo", "dapo"]),
    ],
)
def test_comparisons_that_are_ready(name: str, package: str, n_runs: int, variants: list[str]) -> None:
    pytest.importorskip(package)
    parser = _make_parser()
    experiment = cli_compare._experiment(parser.parse_args(["compare", "--config", name]))
    assert experiment.name == name and len(experiment.jobs()) == n_runs
    assert [variant.name for variant in experiment.variants] == variants
    path = str(ready_path(name))
    assert cli_compare._experiment(parser.parse_args(["compare", "--config", path])) == experiment
    fewer = cli_compare._experiment(parser.parse_args(["compare", "--config", name, "--seeds", "1"]))
    assert fewer.seeds == [0]


def test_help_names_the_comparisons_that_are_ready(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    assert {*ready_comparisons()} <= {*re.findall(r"\w+", capsys.readouterr().out)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--env is missing"),
        (["--config", "clas"], "--config clas: ready-made comparisons are class, homework, lunch"),
        (["--config", "class", "--timesteps", "5"], "--timesteps and --config exclude each other: change a copy of"),
        (["--config", "no.yml"], "Cannot read no.yml"),
        (["--config", "homework", "--seeds", f"0-{10**30}"], "the number of seeds must be a whole number from 1 to 10,000"),
        (["report", "nowhere"], "nowhere"),
        ([*PPO, "--save-freq", "5", "--ray", "auto"], "--save-freq and --ray exclude each other"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not [*Path().iterdir()]
