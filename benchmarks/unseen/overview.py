"""
The table of the defaults on the first page of the results: ours against each peer, over each list of tasks.

It has the numbers of the lists' own pages. At equal seconds, the slower of two runs counts with its next evaluation, the
reading that is kinder to it.
"""

from benchmarks.pages import PAGES
from benchmarks.tables import markdown
from benchmarks.unseen.report import design_of
from benchmarks.unseen.run import rows
from benchmarks.unseen.scores import Runs, against, at_equal_seconds, scores, select, with_alike
from benchmarks.unseen.tables import LABELS
from benchmarks.unseen.tasks import SEEDS
from sb3_grpo.compare.findings import interval_text
from sb3_grpo.compare.statistics import Interval

OURS = ("grpo", "dapo")
PEERS = {
    "ppo": "PPO",
    "ppo-alike": "PPO, observations normalised as ours",
    "trpo": "TRPO",
    "a2c": "A2C",
}
# The current defaults first
TASKS = {
    "test_2": "[thirteen](unseen_test_2.md), not chosen on these",
    "test": "[fourteen](unseen_test.md), not chosen on these, earlier defaults",
    "development": "[twelve](unseen_development.md), chosen on these",
}


def table() -> str:
    """
    :return: A row for each list and peer
    """
    lines = []
    for name, tasks in TASKS.items():
        runs = select(rows(), name, design_of(PAGES / f"unseen_{name}.md"))
        runs = with_alike(runs) or runs
        for peer, label in PEERS.items():
            if peer in runs.of:
                lines.append([tasks, label + _seeds(runs, peer), *line(runs, peer)])
                tasks = ""
    columns = [f"{LABELS[algo]}, equal {unit}" for unit in ("steps", "seconds") for algo in OURS]
    return markdown(["tasks", "against", *columns], lines)


def line(runs: Runs, peer: str) -> list[str]:
    """
    :param runs: The runs shown
    :param peer: One of the peers
    :return: The probability that a run of each of ours is above one of the peer's, at equal steps and at equal seconds
    """
    at_steps = [against(scores(runs, algo), scores(runs, peer)) for algo in OURS]
    at_seconds = [at_equal_seconds(runs, algo, peer)[-1] for algo in OURS]
    return [_text(pair.improvement) for pair in (*at_steps, *at_seconds)]


def _seeds(runs: Runs, peer: str) -> str:
    fewest = min(len(of_task) for of_task in runs.of[peer].values())
    return "" if fewest == SEEDS[runs.list] else f", {fewest} of {SEEDS[runs.list]} seeds"


def _text(interval: Interval) -> str:
    return interval_text(interval, 1.0)
