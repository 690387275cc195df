"""The report of a comparison: its tables and its page."""

import json
import re
import shutil

import pytest

pytest.importorskip("rliable")

import numpy as np
import pandas as pd
from compare_data import BUDGET, curve_to, hyperparams, turn_round_sampled, write_experiment, write_run

from sb3_grpo.classroom.compare.collect import collect
from sb3_grpo.classroom.compare.curves import Line
from sb3_grpo.classroom.compare.figures import draw_lines, styles
from sb3_grpo.classroom.compare.findings import number, scale
from sb3_grpo.classroom.compare.report import make_report
from sb3_grpo.classroom.compare.side_by_side import side_by_side
from sb3_grpo.classroom.compare.statistics import Band
from sb3_grpo.classroom.compare.tables import efficiency_table, final_table, network_statements
from sb3_grpo.console import UsageError

ENV = "CartPole-v1"
MODE = "deterministic"


def two_levels(low, high):
    """PPO ends around one level, DAPO around the other."""
    return lambda env, variant, seed: curve_to((low if variant == "ppo" else high) + seed)


def text_of(page):
    """What a reader sees, without the pictures."""
    html = re.sub(r"<(style|script|svg)\b.*?</\1>", "", page.read_text(), flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def test_final_scores_are_those_of_the_final_evaluation(tmp_path):
    write_experiment(tmp_path, lambda env, variant, seed: curve_to(100.0 * (seed + 1)), seeds=4)
    path = tmp_path / "runs" / ENV / "ppo" / "0" / "evaluations.csv"
    rows = pd.read_csv(path)
    rows.loc[(rows["mode"] == MODE) & (rows.final == 1), "return_mean"] = 140.0
    rows.to_csv(path, index=False)
    results = collect(tmp_path)
    assert results.final_scores(ENV, "ppo", MODE).tolist() == [140.0, 200.0, 300.0, 400.0]
    # The curve goes on with the small evaluations
    assert results.curves(ENV, "ppo", MODE)[:, -1].tolist() == [100.0, 200.0, 300.0, 400.0]
    assert results.final_scores(ENV, "dapo", "stochastic").tolist() == [99.0, 199.0, 299.0, 399.0]
    row = final_table(results, ENV).iloc[0]
    # Mean 260, IQM of the middle two
    assert row["Variant"] == "ppo" and row["IQM (95% interval)"].startswith("250 (") and row["Mean"] == "260"
    assert row["Runs, seed by seed"] == "140, 200, 300, 400"


def test_steps_until_the_environment_counts_as_solved(tmp_path):
    # CartPole-v1 from 475
    write_experiment(
        tmp_path, lambda env, variant, seed: [10.0, 480.0 if seed else 20.0, 500.0 if seed != 1 else 30.0], seeds=3
    )
    row = efficiency_table(collect(tmp_path), ENV).iloc[0]
    # Seed 0 at the end, the others in the middle; PPO makes 1000, 1020, 1040 steps per second
    assert row["Runs that reached 475"] == "3 of 3" and row["Median steps until then"] == "5,007"
    assert float(row["Median seconds until then"]) == pytest.approx(5000 / 1020, abs=0.05)
    # Means over training by hand: 137.5, 250, 367.5
    assert row["Mean return over training, IQM (95% interval)"].startswith("252 (")


def test_a_run_that_never_gets_there_is_infinitely_slow(tmp_path):
    write_experiment(tmp_path, lambda env, variant, seed: curve_to(500.0 if seed == 0 else 100.0), seeds=3)
    assert efficiency_table(collect(tmp_path), ENV).iloc[0].tolist()[-3:] == ["1 of 3", "never", "never"]


def test_a_curve_of_zeros_has_an_axis_from_0_to_1():
    zeros = Line("dapo", np.arange(0, 250_001, 50_000), Band(*np.zeros((3, 6))), np.zeros((1, 6)))
    axes = draw_lines([zeros], styles(["dapo"]), "Environment steps").axes[0]
    assert -0.1 < axes.get_ylim()[0] < 0 and 1 < axes.get_ylim()[1] < 1.1
    assert {*range(0, 250_001, 50_000)} <= {*axes.get_xticks()}


def test_returns_at_equal_time(tmp_path):
    # PPO is at 0, 50, 100 after 0, about 5 and 10 s, DAPO at 0, 100, 200 and then a little
    write_experiment(
        tmp_path, lambda env, variant, seed: [0.0, 100.0, 200.0] if variant == "dapo" else [0.0, 50.0, 100.0], seeds=3
    )
    results = collect(tmp_path)
    seconds = results.curves(ENV, "ppo", MODE, "seconds")
    assert results.returns_after(ENV, "ppo", MODE, 0.0).tolist() == [0.0] * 3
    half = float(seconds[1, 1]) / 2
    assert results.returns_after(ENV, "ppo", MODE, half)[1] == pytest.approx(25.0)
    # Runs that had ended
    assert results.returns_after(ENV, "dapo", MODE, 1e6).tolist() == [200.0] * 3
    shortest = min(results.done(ENV, name).seconds.median() for name in ("ppo", "dapo"))
    assert results.shortest_time(ENV) == shortest
    ppo, dapo = efficiency_table(results, ENV)[f"Return after {number(shortest)} s, IQM (95% interval)"]
    # DAPO makes 1500 steps per second where PPO makes 1000
    assert ppo.startswith("66.7 (") and dapo.startswith("199 (")


def test_curve_over_time_ends_with_the_fastest_run(tmp_path):
    write_experiment(tmp_path, lambda env, variant, seed: curve_to(110.0), seeds=3)
    seconds, curves = collect(tmp_path).curves_over_time(ENV, "ppo", MODE, points=3)
    # 10,000 steps at 1040 per second; seed 0 makes 1000
    assert seconds[-1] == pytest.approx(10_000 / 1040)
    assert curves[0, -1] == pytest.approx(10 + 100 * 1000 / 1040)
    assert curves[2, -1] == pytest.approx(110)


def test_page_has_everything_and_needs_nothing(tmp_path):
    write_experiment(tmp_path, two_levels(50.0, 400.0), envs=(ENV, "Pendulum-v1"), seeds=5)
    page = make_report(tmp_path)
    assert page == tmp_path / "report.html"
    html = page.read_text()
    pictures = {path.stem for path in (tmp_path / "figures").glob("*.svg")}
    kinds = ("curves_steps", "curves_time", "Entropy_of_the_policy", "Dead_groups")
    assert {f"{kind}_{env}" for kind in kinds for env in (ENV, "Pendulum-v1")} | {"performance_profiles"} <= pictures
    for name in pictures:
        for suffix in ("png", "svg"):
            assert (tmp_path / "figures" / f"{name}.{suffix}").stat().st_size > 5_000
            assert html.count(f'href="figures/{name}.{suffix}"') == 1
    # Besides these links, only parts of the page itself, which is drawn once, and in colours of the stylesheet
    assert not re.findall(r'\ssrc="|\shref="(?!#|figures/)[^"]*"|url\((?!#)|@import|<script', html)
    assert not re.findall(r"(?:fill|stroke): #", html)
    assert set(re.findall(r"var\((--c\w+)\)", html)) <= set(re.findall(r"(--c\w+):", html))
    ids = re.findall(r'\sid="([^"]*)"', html)
    assert len(ids) == len(set(ids)) and set(re.findall(r'href="#([^"]*)"', html)) <= set(ids)
    shown = re.search(rf'aria-label="{ENV}: KL divergence per update[^>]*>(<svg.*?</svg>)', html, re.DOTALL)
    assert shown is not None
    labels = re.findall(r">([^<>]+)</text>", shown[1])
    assert len(labels) == len(set(labels)), "numbers with all their digits"
    assert page.stat().st_size < 600_000
    text = text_of(page)
    for phrase in (
        "All 20 runs finished",
        "Over both environments together, dapo ended higher than ppo.",
        "Final return (20 episodes) ppo 52.0 (",
        "ppo and dapo dapo ended higher +",
        "python -m sb3_grpo compare --env CartPole-v1 --algo ppo dapo",
        "dapo: tuned, 100 trials",
        "Seeds 5 (0, 1, 2, 3, 4)",
    ):
        assert phrase in text, phrase
    for name, n_rows in (("runs", 20), ("evaluations", 20 * 14)):
        table = pd.read_csv(tmp_path / f"{name}.csv")
        assert len(table) == n_rows and list(table.columns[:4]) == ["env", "variant", "algo", "seed"]
    assert {"key", "value"} < set(pd.read_csv(tmp_path / "diagnostics.csv").columns)


@pytest.mark.usefixtures("no_pictures")
def test_failed_and_missing_runs_are_listed_and_not_counted(tmp_path):
    write_experiment(tmp_path, two_levels(50.0, 400.0), seeds=5)
    failed, missing = (tmp_path / "runs" / ENV / "ppo" / seed for seed in "14")
    (failed / "result.json").unlink()
    (failed / "error.txt").write_text("Traceback (most recent call last):\nValueError: NaN <b>in</b> the policy\n")
    shutil.rmtree(missing)
    write_run(tmp_path, ENV, "a2c", "a2c", 0, curve_to(1.0))
    page = make_report(tmp_path)
    text = text_of(page)
    assert "8 of 10 runs finished, 1 failed, 1 missing" in text
    assert "ppo, dapo on CartPole-v1: 3 to 5 finished seeds each." in text
    assert "ValueError: NaN &lt;b&gt;in&lt;/b&gt; the policy" in text
    assert "runs/CartPole-v1/a2c/0 is not part of experiment.json" in text
    assert pd.read_csv(tmp_path / "runs.csv").status.value_counts().to_dict() == {"done": 8, "failed": 1, "missing": 1}
    results = collect(tmp_path)
    assert results.final_scores(ENV, "ppo", MODE).tolist() == [50.0, 52.0, 53.0]


def test_unequal_evaluations_are_used_as_far_as_they_go_and_said(tmp_path):
    write_experiment(tmp_path, two_levels(50.0, 400.0), seeds=3)
    path = tmp_path / "runs" / ENV / "dapo" / "2" / "evaluations.csv"
    rows = pd.read_csv(path)
    rows[(rows.target_steps != 4000.0) | (rows.final == 1)].to_csv(path, index=False)
    results = collect(tmp_path)
    assert results.grid(ENV, MODE).tolist() == [0.0, 2000.0, 6000.0, 8000.0, 10000.0]
    assert results.curves(ENV, "dapo", MODE).shape == (3, 5)
    notes = " ".join(results.notes)
    assert "CartPole-v1, dapo, seed 2: 5 deterministic evaluations instead of 6" in notes
    assert results.final_scores(ENV, "dapo", MODE).tolist() == [400.0, 401.0, 402.0]


SAID = "Finished runs made with other settings than experiment.json says: "


@pytest.mark.parametrize(
    ("name", "changes", "note"),
    [
        (
            "result",
            [{"steps": 11_600}],
            f"{ENV}, dapo: with its last rollout a run made 11,600 steps, 16% more than the budget",
        ),
        ("result", [{"steps": 2_600}], f"{ENV}, dapo: a run ended after 2,600 steps of a budget of 10,000"),
        (
            "config",
            [{"versions": {"torch": "2.9.0", "numpy": numpy}} for numpy in ("1.26.4", "2.0.0")],
            "The runs were made with different versions of numpy: 1.26.4, 2.0.0.",
        ),
        ("config", [{"machine": {"platform": "macOS"}}], "The runs were made on 2 different machines"),
        ("config", [{"timesteps": 400}] * 2, f"{SAID}2 of {ENV}, dapo: timesteps 400 instead of {BUDGET}."),
        (
            "config",
            [{"hyperparameters": hyperparams("dapo") | {"gamma": "0.5"}}],
            f"{SAID}1 of {ENV}, dapo: gamma '0.5' instead of '0.99'.",
        ),
    ],
)
def test_what_a_reader_has_to_know_is_noted(tmp_path, name, changes, note):
    write_experiment(tmp_path, two_levels(50.0, 400.0), seeds=3)
    assert not collect(tmp_path).notes, "7 of 10,000 steps too many are not worth a word"
    for seed, change in enumerate(changes):
        path = tmp_path / "runs" / ENV / "dapo" / str(seed) / f"{name}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    (found,) = collect(tmp_path).notes
    assert found.startswith(note)


@pytest.mark.usefixtures("no_pictures")
def test_one_variant_one_environment_one_seed(tmp_path):
    write_experiment(tmp_path, lambda env, variant, seed: curve_to(100.0), variants={"dapo": "dapo"}, seeds=1)
    text = text_of(make_report(tmp_path))
    assert "There are runs of one variant only" in text
    assert "No interval is given below 3 seeds." in text


def test_nothing_finished(tmp_path):
    with pytest.raises(UsageError, match=r"has no experiment\.json"):
        make_report(tmp_path)
    write_experiment(tmp_path, two_levels(1.0, 2.0), seeds=1)
    run = tmp_path / "runs" / ENV / "ppo" / "0"
    for path in tmp_path.glob("runs/*/*/*/result.json"):
        path.unlink()
    (run / "error.txt").write_bytes(b"ValueError: no such network \xff\n")
    with pytest.raises(UsageError, match=r"no finished run yet.*1 failed.*ppo, seed 0.*no such network"):
        make_report(tmp_path)


def test_missing_packages_name_the_extra(tmp_path, monkeypatch):
    import sys

    write_experiment(tmp_path, two_levels(1.0, 2.0), seeds=3)
    monkeypatch.setitem(sys.modules, "rliable.library", None)
    with pytest.raises(UsageError, match=r'rliable.*pip install "sb3-grpo\[compare\]"'):
        make_report(tmp_path)


@pytest.mark.usefixtures("no_pictures")
def test_pairs_whose_names_contain_and_have_a_row_each(tmp_path):
    variants = {"a": "ppo", "b and c": "ppo", "a and b": "ppo", "c": "ppo"}
    write_experiment(tmp_path, two_levels(1.0, 2.0), variants=variants, seeds=1)
    assert make_report(tmp_path).read_text().count('<tr><th scope="row">a and b and c</th>') == 2


@pytest.mark.usefixtures("no_pictures")
def test_scores_are_of_the_actions_that_the_experiment_names(tmp_path):
    other = "Pendulum-v1"
    write_experiment(tmp_path, two_levels(50.0, 400.0), envs=(ENV, other), seeds=5)
    text = text_of(make_report(tmp_path))
    assert "Results are those of the most likely actions." in text and "The rule:" not in text
    assert "Over both environments together, dapo ended higher than ppo." in text
    turn_round_sampled(tmp_path, other)
    results = collect(tmp_path)
    text = text_of(make_report(tmp_path))
    # No variant learned on the other one
    assert f"On {ENV}, dapo ended higher than ppo. On {other}, ppo ended higher than dapo." in text
    assert text.count(f"of the most likely actions on {ENV}; sampled actions on {other}") == 2
    assert "The rule: sampled actions in Atari games and MiniGrid" in text and "the same for all variants" in text
    # Sampled returns are one lower, and turned round
    assert scale(results, other).low == pytest.approx(-9.0) and scale(results, ENV).low == pytest.approx(10.0)


def test_different_networks_are_told(tmp_path):
    write_experiment(tmp_path, two_levels(50.0, 400.0), seeds=3)
    assert network_statements(collect(tmp_path)) == []
    for path in tmp_path.glob(f"runs/{ENV}/dapo/*/result.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "n_parameters": 17_000, "net_arch": "[128, 128]"}))
    (statement,) = network_statements(collect(tmp_path))
    assert "differ in size" in statement and "ppo 4,610, dapo 17,000 parameters" in statement


GRPO = {"advantage": "gae", "loss_average": "step", "n_steps": "None", "n_groups": "None", "gae_lambda": "0.95"}
PAPER = {"advantage": "outcome", "loss_average": "episode", "advantage_scale": "group"}
IN_STEPS = "linear critic in closed form, no critic network; fitted to the steps with earlier updates at half weight"


@pytest.mark.parametrize(
    "algo, settings, row, expected",
    [
        ("ppo", {}, "Value model", "critic network"),
        ("ppo", {"n_epochs": "10"}, "Epochs", "10"),
        ("ppo", {"clip_range": "lin_0.2"}, "Clipping", "0.2, falling to 0, on both sides"),
        ("trpo", {"target_kl": "0.01"}, "KL limit of an update", "at most 0.01"),
        ("grpo", GRPO, "Value model", IN_STEPS),
        ("grpo", GRPO, "Dead groups", "learned from"),
        ("grpo", PAPER, "Value model", "none"),
        ("grpo", PAPER, "Loss averaged over", "the steps of each episode first, then the episodes"),
        ("grpo", {"advantage": "student.mine"}, "Advantage", "student.mine"),
        ("dapo", PAPER, "Dead groups", "dropped, new ones drawn in up to 4 rounds"),
        ("dapo", GRPO, "Clipping", "low 0.2, high 0.28"),
    ],
)
def test_side_by_side(tmp_path, algo, settings, row, expected):
    write_experiment(tmp_path, two_levels(50.0, 400.0), variants={"it": algo}, seeds=1)
    change_settings(tmp_path, ENV, settings)
    table = side_by_side(collect(tmp_path)).set_index("")
    assert table.loc[row, "it"] == expected


def change_settings(folder, env, settings):
    experiment = json.loads((folder / "experiment.json").read_text())
    experiment["hyperparams"][env]["it"] |= settings
    (folder / "experiment.json").write_text(json.dumps(experiment))


def test_side_by_side_names_environments_where_settings_differ_and_skips_what_it_does_not_know(tmp_path):
    write_experiment(
        tmp_path, two_levels(50.0, 400.0), envs=(ENV, "Pendulum-v1"), variants={"it": "grpo", "dqn": "dqn"}, seeds=1
    )
    change_settings(tmp_path, ENV, PAPER)
    change_settings(tmp_path, "Pendulum-v1", GRPO)
    table = side_by_side(collect(tmp_path)).set_index("")
    assert table.loc["Value model"].tolist() == [f"none (CartPole-v1); {IN_STEPS} (Pendulum-v1)", "-"]
