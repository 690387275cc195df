"""The tables that the benchmarks' page is made of."""

import json
import shutil

import pytest

pytest.importorskip("rliable")

import pandas as pd
from compare_data import curve_to, write_experiment

from benchmarks import text
from benchmarks.tables import equal_time_table, pairs_at_equal_time, pairs_at_the_end, short_table, stability_table
from sb3_grpo.classroom.compare.collect import collect


def write_log(folder, variant, seed, logged):
    """
    :param folder: of the experiment
    :param variant: its name
    :param seed: the run
    :param logged: key and the values in the order of the steps
    """
    path = folder / "runs" / "CartPole-v1" / variant / str(seed) / "diagnostics.csv"
    keys = {"env": "CartPole-v1", "variant": variant, "algo": variant, "seed": seed, "seconds": 1.0}
    rows = [
        {**keys, "steps": 100 * (i + 1), "key": f"train/{key}", "value": value}
        for key, values in logged.items()
        for i, value in enumerate(values)
    ]
    # The file is in no particular order; the table has to find begin and end by the steps
    pd.DataFrame(rows).iloc[::-1].to_csv(path, index=False)


def test_stability_table_is_made_of_what_the_runs_logged(tmp_path):
    variants = {"grpo": "grpo", "trpo": "trpo"}
    folder = write_experiment(tmp_path / "e", lambda *_: curve_to(100.0), variants=variants, seeds=3)
    for seed in range(3):
        logged = {
            "entropy_loss": [-0.6 - seed, -0.5, -0.1 - seed],
            "approx_kl": [0.01, 0.02 + seed, 0.03 + seed],
            "ratio_max": [1.5, 1.2, 1.1 + seed],
        }
        write_log(folder, "grpo", seed, logged)
        write_log(folder, "trpo", seed, {"entropy_loss": [-1.0, -0.5]})
    columns, _, *rows = stability_table(collect(folder)).splitlines()
    cells = [cell.strip() for cell in rows[0].strip("|").split("|")]
    row = dict(zip((cell.strip() for cell in columns.strip("|").split("|")), cells, strict=True))
    # Medians over the three runs: first and last value
    assert row["entropy"] == "1.6 to 1.1"
    # The medians of the runs are 0.02, 1.02, 2.02, the largest value is the last of seed 2
    assert row["KL"] == "1 (2)"
    assert row["largest ratio"] == "1.5 (3.1)"
    # Not logged: left empty, not zero; an algorithm that logs no divergence has no row
    assert row["std"] == row["above"] == ""
    assert len(rows) == 1


def cells_of(row):
    """
    :param row: of a table in Markdown
    :return: its cells
    """
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_the_faster_of_two_equals_is_ahead_at_equal_time(tmp_path):
    # 10,000 steps from 0 to 100, with 1000, 1020, 1040 steps per second (PPO) and one and a half times that (DAPO)
    results = collect(write_experiment(tmp_path / "e", lambda env, variant, seed: curve_to(100.0 + seed, first=0.0), seeds=3))
    columns, _, *rows = equal_time_table(results).splitlines()
    assert cells_of(columns) == ["task", "seconds", "PPO", "DAPO"] and len(rows) == 1
    task, seconds, ppo, dapo = cells_of(rows[0])
    assert (task, seconds) == ("CartPole-v1", "7")
    # Of 100, 101, 102 at the end: two thirds of the way, with the speed of each run
    assert float(ppo.split()[0]) == pytest.approx(101 * 2 / 3, abs=0.1) and float(dapo.split()[0]) == pytest.approx(101, abs=1)
    names, difference, improvement, p_value = pair_of(pairs_at_the_end([results]))
    assert (names, difference, improvement, p_value) == ("PPO against DAPO", 0.0, 0.5, 1.0)
    _, difference, improvement, p_value = pair_of(pairs_at_equal_time([results]))
    # Complete separation of three from three
    assert (improvement, p_value) == (0.0, 0.1) and difference == pytest.approx(-1 / 3, abs=0.02)
    # With half as much time again for PPO they are equal, but for DAPO's slowest run, which is not there yet
    assert abs(pair_of(pairs_at_equal_time([results], others_time=1.5))[1]) < 0.01


def pair_of(table):
    """
    :param table: of a single pair
    :return: its names, difference, probability of improvement, p-value
    """
    names, *cells = cells_of(table.splitlines()[-1])
    return names, *(float(cell.split()[0]) for cell in cells)


def test_comparisons_are_put_together_by_their_normalised_scores(tmp_path):
    def score(env, variant, seed):
        # On one task PPO reaches half of what DAPO does, on the other it is the other way round
        best = 100.0 if (variant == "dapo") == (env == "CartPole-v1") else 50.0
        return curve_to(best, first=0.0)

    parts = [collect(write_experiment(tmp_path / env, score, envs=(env,), seeds=3)) for env in ("CartPole-v1", "Acrobot-v1")]
    assert pair_of(pairs_at_the_end(parts[:1]))[1:3] == (-0.5, 0.0)
    table = pairs_at_the_end(parts)
    assert pair_of(table)[1:3] == (0.0, 0.5)
    assert [cells_of(row)[0] for row in table.splitlines()[2:4]] == ["PPO", "DAPO"]
    assert [float(cells_of(row)[1].split()[0]) for row in table.splitlines()[2:4]] == [0.75, 0.75]


def test_environments_that_cannot_be_put_together_are_told(tmp_path):
    envs = ("CartPole-v1", "Acrobot-v1", "Pendulum-v1")
    folder = write_experiment(tmp_path / "e", lambda *_: curve_to(100.0), envs=envs, seeds=3)
    shutil.rmtree(folder / "runs" / "Acrobot-v1" / "ppo")
    shutil.rmtree(folder / "runs" / "Pendulum-v1")
    results = collect(folder)
    rows = [cells_of(row) for row in equal_time_table(results).splitlines()[2:]]
    assert [(row[0], row[2] == "") for row in rows] == [("CartPole-v1", False), ("Acrobot-v1", True)]
    (ppo, *returns), _ = (cells_of(row) for row in short_table(results).splitlines()[2:])
    assert ppo == "PPO" and [text == "" for text in returns] == [False, True, True]
    for table in (pairs_at_the_end, pairs_at_equal_time):
        assert "1 of 3 environments (without Acrobot-v1, Pendulum-v1)" in table([results]).splitlines()[0]
    shutil.rmtree(folder / "runs" / "CartPole-v1" / "dapo")
    for table in (pairs_at_the_end, pairs_at_equal_time):
        assert table([collect(folder)]).startswith("No environments can be combined")


def test_summary_of_the_text_runs_is_that_of_the_runs():
    assert text.summarise() == json.loads((text.RUNS / "summary.json").read_text())
