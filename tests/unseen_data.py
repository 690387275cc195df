"""Rows of unseen tasks that are made up, for the tests of their pages."""

from benchmarks.unseen import run
from benchmarks.unseen.tasks import Task

PLAIN = Task("Plain-v0", 1000, 0.0, 100.0, "made up")
CONTINUOUS = Task("Continuous-v0", 1000, -10.0, 10.0, "MuJoCo")


def rows_of(algo, task, finals, seconds=(10.0, 20.0), first=0.0, design=None, **more):
    """
    :param algo: Its name
    :param task: On which
    :param finals: Last return of each seed
    :param seconds: Of the two evaluations
    :param first: Return of the first one
    :param design: Of ours
    :param more: Entries of the rows
    :return: A row for each seed
    """
    design = design or ("A" if algo in run.OURS else "")
    same = {"list": "test", "task": task.env_id, "algo": algo, "design": design, "steps": [500, 1000], "commit": "abc"}
    same |= {"seconds": list(seconds)}
    return [same | {"seed": seed, "returns": [first, final]} | more for seed, final in enumerate(finals)]


def cells_of(table, row):
    """
    :param table: In Markdown
    :param row: What its first cell begins with
    :return: The cells by their columns
    """
    columns, _, *lines = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
    return next(dict(zip(columns, line, strict=True)) for line in lines if line[0].startswith(row))
