"""
The table of the defaults on the first page of the results: ours against each peer, over each list of tasks.

It has the numbers of the lists' own pages. At equal seconds, the slower of two runs counts with its next evaluation, the
reading that is kinder to it.
"""

from benchmarks.pages import PAGES
from benchmarks.tables import markdown
from benchmarks.unseen.report import design_of
from benchmarks.unseen.run import rows
from benchmarks.unseen.scores import select
from benchmarks.unseen.tables import PAIRS, rows_of_pairs

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
        found = rows_of_pairs(select(rows(), name, design_of(PAGES / f"unseen_{name}.md")))
        lines += [["" if i else tasks, *row] for i, row in enumerate(found)]
    return markdown(["tasks", *PAIRS], lines)
