"""Pages that are written by a program are those that it writes, and what the README says of them stands there."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("rliable")
pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from benchmarks import arguments, blocks, tables
from benchmarks.common import PAGES, ROOT
from benchmarks.pages import WRITERS
from sb3_grpo.classroom.compare.results import Results
from sb3_grpo.common.arguments import ARGUMENTS

INTERVAL = re.compile(r"[\d.]+ \([\d.]+ to [\d.]+\)")
# unseen.md takes a quarter of an hour
PAGES_OF = sorted(path for path in PAGES.glob("*.md") if path.stem != "unseen")
FAST = ("speed", "trust")


def test_the_page_of_arguments() -> None:
    meanings = {name: meaning for group in arguments.groups_of_arguments().values() for name, meaning in group.items()}
    assert {*ARGUMENTS} <= {*meanings} and all(meanings.values())
    written = arguments.PAGE.read_text(encoding="utf-8")
    assert written == arguments.arguments_page(), "Write it again: python -m benchmarks.arguments"


@pytest.mark.parametrize(
    "page",
    [pytest.param(path, id=path.stem, marks=[] if path.stem in FAST else [pytest.mark.slow]) for path in PAGES_OF],
)
def test_the_pages_of_results_are_current(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Figure, "savefig", lambda *args, **kwargs: None)
    np.seterr(all="ignore")
    written = page.read_text(encoding="utf-8")
    assert blocks.refresh(written, WRITERS) == written, f"Write it again: python -m benchmarks.pages {page.stem}"


def test_the_pages_of_results_are_few_and_short() -> None:
    pages = [path.read_text(encoding="utf-8") for path in PAGES.glob("*.md")]
    assert len(pages) <= 10 and sum(len(page.split()) for page in pages) <= 10_500


def test_the_readme_has_the_numbers_of_the_results() -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## What it reaches")[2].partition("\n## ")[0]
    lines = (PAGES / "index.md").read_text(encoding="utf-8").splitlines()
    said = [INTERVAL.findall(line) for line in section.splitlines() if line.startswith("|") and INTERVAL.search(line)]
    assert len(said) == 6
    for numbers in said:
        assert any(all(number in line for number in numbers) for line in lines), numbers


def test_only_the_blocks_are_written_again() -> None:
    page = "A.\n\n<!-- write: sum 1 2 -->\nold\n<!-- end -->\n\nB.\n\n<!-- write: other -->\nkept\n<!-- end -->\n"
    written = blocks.refresh(page, {"sum": lambda *numbers: str(sum(map(int, numbers)))})
    assert written == page.replace("\nold\n", "\n\n3\n\n")
    assert blocks.refresh(written, {}) == blocks.refresh(written, {"sum": print}, first="2") == written


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
    """DAPO above PPO on one task, and the other way round on the other; the last run of PPO has failed."""
    experiment = {"envs": ["A-v0", "B-v0"], "variants": [{"name": "ppo"}, {"name": "dapo"}], "seeds": [0, 1, 2, 3]}
    experiment |= {"timesteps": {"A-v0": 1000, "B-v0": 2_000_000}, "main_modes": {"B-v0": "stochastic"}, "n_final_episodes": 5}
    runs, evaluations = [], []
    for env in experiment["envs"]:
        for variant in ("ppo", "dapo"):
            for seed in range(4):
                status = "failed" if (variant, seed) == ("ppo", 3) else "done"
                key = {"env": env, "variant": variant, "seed": seed}
                runs.append(key | {"status": status, "seconds": 10.0 + seed})
                best = 100.0 if (variant == "dapo") == (env == "A-v0") else 50.0
                for mode, factor in (("deterministic", 1.0), ("stochastic", 0.5)):
                    for steps, share, final in ((0, 0.0, 0), (1000, 0.5, 0), (1000, 1.0, 1)):
                        score = {
                            "target_steps": steps,
                            "mode": mode,
                            "return_mean": factor * share * best + seed,
                            "final": final,
                        }
                        evaluations.append(key | score)
    found = Results(tmp_path, experiment, {}, pd.DataFrame(runs), pd.DataFrame(evaluations), pd.DataFrame())
    monkeypatch.setattr(tables, "comparison", lambda name: found)
    return found


@pytest.mark.usefixtures("small")
def test_finished_runs_count_with_the_evaluations_that_were_agreed_on() -> None:
    header, _, ppo, *_ = tables.finals("small").splitlines()
    assert header == "|  | A-v0, 1k | B-v0, 2M |" and ppo.startswith("| PPO | 51.0 (50.0 to 52.0) | 51.0 (")
    assert "deterministic (on B-v0: stochastic) episodes" in tables.finals("small") and "DAPO 12, 12" in tables.finals("small")
