"""What others publish, and the page that puts our results beside it."""

import json
import re

import pytest

pytest.importorskip("rliable")

from benchmarks import published
from benchmarks.pages import COMPARISONS, PAGES, RESULTS
from benchmarks.published import Line
from benchmarks.unseen.tasks import LISTS


@pytest.fixture(scope="module")
def rows():
    return published.read()


def test_every_figure_has_a_source_and_a_task_of_ours(rows):
    ours = {task.env_id for tasks in LISTS.values() for task in tasks}
    ours |= {env for name in COMPARISONS for env in json.loads((RESULTS / name / "experiment.json").read_text())["timesteps"]}
    for row in rows:
        assert row["task"] in ours and row["algorithm"] in ("PPO", "TRPO", "A2C", "REINFORCE")
        # As it was when it was read
        assert re.fullmatch(r"https://github\.com/[\w-]+/[\w-]+/blob/[0-9a-f]{10}/[\w/.-]+\.md", row["url"])
        assert row["source"] and row["version"] and int(row["steps"]) >= 10_000
        assert float(row["deviation"] or 0.0) >= 0.0 and float(row["return"]) == float(row["return"])
    keys = [tuple(row[key] for key in ("task", "algorithm", "steps", "source", "version")) for row in rows]
    assert len(set(keys)) == len(keys)


def test_the_page_says_how_each_source_counts(rows):
    how = (PAGES / "published.md").read_text().partition("## Sources")[2]
    assert all(f"| {source} |" in how for source in {row["source"] for row in rows})


def test_what_stands_out_stands_in_the_tables():
    page = (PAGES / "published.md").read_text()
    begin, _, tables = page.partition("## Classic control")
    stands_out = re.sub(r"\]\([^)]*\)", "]", begin.partition("\n- ")[2])  # without the addresses of links
    returns = re.findall(r"(?<![\w,.])-?\d[\d,]*\d(?![\w,])", stands_out.replace("(", " ").replace(")", " "))
    assert len(returns) > 20
    assert [number for number in returns if not re.search(rf"[ (]{number}[ )]", tables)] == []


def test_lines_have_the_steps_the_version_and_the_spread():
    same = {"task": "Hopper-v5", "source": "Abacus", "url": "https://x.example/a", "steps": "1000000", "version": "Hopper-v3"}
    found = [
        same | {"algorithm": "PPO", "return": "2609.3", "deviation": "700.8"},
        same | {"algorithm": "TRPO", "return": "12.34", "deviation": ""},
        same | {"algorithm": "PPO", "return": "7", "deviation": "0.1", "steps": "20000", "version": "Hopper-v5"},
        same | {"algorithm": "PPO", "return": "1", "deviation": "", "task": "Other-v0", "version": "A/Other-v1"},
    ]
    first, *_, other = lines = sorted(published.published_lines(found), key=lambda line: (line.task, line.steps))
    assert first == Line("Hopper-v5", "[Abacus](https://x.example/a)", 20_000, {"PPO": "7.00 ± 0.10"})
    assert lines[1].who == "[Abacus](https://x.example/a), v3"
    assert lines[1].returns == {"PPO": "2,609 ± 701", "TRPO": "12.3"} and other.who.endswith(", A/Other-v1")
    ours = [Line("Hopper-v5", "**here**", 500_000, {"GRPO": "2,768"}), Line("Alone-v0", "**here**", 1000, {"GRPO": "1"})]
    assert published.table(ours, lines).splitlines() == [
        "| task |  | steps | PPO | TRPO | GRPO |",
        "| --- | --- | --- | --- | --- | --- |",
        "| Hopper-v5 | **here** | 500k |  |  | 2,768 |",
        "|  | [Abacus](https://x.example/a) | 20k | 7.00 ± 0.10 |  |  |",
        "|  | [Abacus](https://x.example/a), v3 | 1M | 2,609 ± 701 | 12.3 |  |",
    ]
    assert published.table(ours[1:], lines) == ""


def test_fewer_runs_than_seeds_are_told(monkeypatch):
    same = {"list": "development", "task": "Reacher-v5", "returns": [-9.0, -5.0]}
    found = [same | {"algo": "ppo", "design": "", "seed": seed} for seed in range(3)]
    found += [same | {"algo": "ppo-norm", "design": "", "seed": 0}]
    found += [same | {"algo": "grpo", "design": published.design_of(PAGES / "unseen_development.md"), "seed": 0}]
    monkeypatch.setattr(published, "unseen_lists", lambda: ["development"])
    for rows, seeds in ((found, "1 to 3 seeds"), (found[:-1], "3 seeds")):
        monkeypatch.setattr(published, "rows", lambda rows=rows: rows)
        line = next(line for line in published.default_lines() if line.task == "Reacher-v5")
        assert line.who == f"**here**, [defaults](unseen_development.md), {seeds}"
        assert line.returns["PPO"].startswith("-5.00") and ("GRPO" in line.returns) == (len(rows) == 5)
