"""What DAPO's changes are worth: the effects on numbers that are known, and a run."""

import json

import pytest

pytest.importorskip("rliable")
pytest.importorskip("scipy")

from benchmarks.common import rows
from benchmarks.switches import run
from benchmarks.switches.effects import effects, measured
from benchmarks.switches.report import DATA, Rung, rungs_of, widget_data
from benchmarks.switches.run import RESULTS
from benchmarks.switches.tasks import N_POINTS, TASKS, five, ordered
from sb3_grpo.classroom.compare.statistics import iqm

WORTH = {
    "clip_higher": 0.05,
    "dynamic_sampling": 0.2,
    "step_loss": 0.0,
    "overlong_filter": -0.1,
    "overlong_range": 0.03,
    "no_kl": 0.1,
}
TOGETHER = 0.08


def rows_of(name, seeds=5):
    """
    :param name: Of a task
    :param seeds: How many
    :return: Runs to which each change adds what it is worth, and all five together ``TOGETHER``, times the range, all along
    """
    low, high = TASKS[name].range
    all_five = ordered(set(five(TASKS[name].overlong)))
    return [
        {
            "task": name,
            "on": list(arm),
            "seed": seed,
            "scores": [
                low + (high - low) * (0.3 + 0.01 * seed + sum(WORTH[change] for change in arm) + TOGETHER * (arm == all_five))
            ]
            * (N_POINTS + 1),
        }
        for arm in TASKS[name].arms
        for seed in range(seeds)
    ]


def test_effects_are_what_each_change_adds():
    for name in ("control", "text"):
        low, high = TASKS[name].range
        for change, effect in effects(measured(rows_of(name), name)).items():
            expected = (high - low) * WORTH[change]
            assert effect.alone.value == pytest.approx(expected, abs=1e-6), change
            # All seeds agree
            assert effect.last == pytest.approx([expected + (high - low) * TOGETHER] * 3, abs=1e-6), change
            if name == "control":
                # Middle halves of different combinations: near the truth
                assert effect.main is not None
                assert effect.main.value == pytest.approx(expected, abs=0.03 * (high - low)), change
            else:
                assert effect.main is None


def test_only_seeds_that_all_combinations_have_are_compared():
    rows = [row for row in rows_of("control") if not (row["seed"] == 3 and row["on"] == ["no_kl"])]
    found = measured(rows, "control")
    assert found.seeds == (0, 1, 2, 4)
    assert {len(curves) for curves in found.curves.values()} == {4}


def test_the_ladder_is_that_of_the_paper():
    rungs: list[Rung] = rungs_of(measured(rows_of("ladder"), "ladder"))
    assert [(rung.label, rung.paper) for rung in rungs] == [
        ("GRPO", None),
        ("+ no KL penalty", 30),
        ("+ overlong filter", 36),
        ("+ clip-higher", 38),
        ("+ overlong penalty for the filter", 41),
        ("+ step-level loss", 42),
        ("+ dynamic sampling", 50),
    ]
    # The penalty takes the place of the filter
    assert rungs[4].adds == pytest.approx([WORTH["overlong_range"] - WORTH["overlong_filter"]] * 3)


def test_the_lecture_gets_the_combinations_that_were_measured():
    found = {name: measured(rows_of(name), name) for name in ("control", "text", "ladder")}
    data = widget_data(found, {name: effects(found[name]) for name in ("control", "text")})
    assert len(data["control"]["arms"]) == 32
    assert {"00000", "11111", "10000", "01111"} <= set(data["text"]["arms"])
    # Combinations with the filter are on the page alone
    assert set(data["ladder"]["arms"]) == {"00000", "00001", "10011", "10111", "11111"}
    assert data["text"]["switches"][3] == "overlong penalty" and "10011" in data["text"]["arms"]
    # Of what is off, as far as the combination with it was measured
    assert data["text"]["arms"]["00000"]["worth"][4] == pytest.approx([0.1] * 3)
    assert data["text"]["arms"]["10000"]["worth"] == [None] * 5
    assert [len(part) for part in data["text"]["arms"]["00000"]["curve"]] == [N_POINTS + 1] * 3


@pytest.mark.parametrize("name", ["control", "text"])
def test_runs_begin_alike_and_have_all_points(name, monkeypatch):
    monkeypatch.setitem(TASKS, name, TASKS[name]._replace(timesteps=600))
    monkeypatch.setattr(run, "WARM_START_PASSES", 1)
    with_kl, without = (run.learn(name, arm, 0) for arm in ((), ("no_kl",)))
    assert len(with_kl["scores"]) == len(without["scores"]) == N_POINTS + 1
    assert with_kl["scores"][0] == without["scores"][0]
    assert set(with_kl) == {"task", "on", "seed", "scores", "dead", "cut_off", "updates", "seconds"}


def test_the_lecture_shows_the_runs_there_are():
    data = json.loads(DATA.read_text(encoding="utf-8"))
    for name in ("control", "text", "ladder"):
        found = measured(rows(RESULTS), name)
        assert data[name]["seeds"] == len(found.seeds)
        for arm, curves in found.curves.items():
            bits = "".join(str(int(switch in arm)) for switch in five(found.task.overlong))
            if set(arm) <= set(five(found.task.overlong)):
                assert data[name]["arms"][bits]["curve"][0] == pytest.approx(iqm(curves), abs=0.06)
