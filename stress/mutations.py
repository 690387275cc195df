"""
Do the tests notice? Small errors are introduced into the mathematics, the queue and the starts one at a time (a comparison
reversed, a number changed, a call left out), and the tests run until one fails. Each mutation is a row of the table.

    python -m stress.mutations --sample 300

Continues where it was interrupted: mutations that have a row are not run again.
"""

import argparse
import ast
import csv
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from rich.progress import track

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "mutations.csv"
# The modules, and the test files closest to each. Those of the packages below run after them
TARGETS = {
    "sb3_grpo/common/advantages.py": ["tests/common/test_advantages.py", "tests/common/test_rewards.py"],
    "sb3_grpo/common/batch.py": ["tests/common/test_train.py", "tests/groups/test_groups.py"],
    "sb3_grpo/common/buffers.py": ["tests/common/test_train.py", "tests/groups/test_groups.py"],
    "sb3_grpo/common/frames.py": ["tests/common/test_frames.py"],
    "sb3_grpo/common/kl.py": ["tests/common/test_kl.py"],
    "sb3_grpo/common/losses.py": ["tests/common/test_losses.py"],
    "sb3_grpo/common/normalization.py": ["tests/common/test_normalization.py"],
    "sb3_grpo/common/on_group_algorithm.py": ["tests/common/test_run.py", "tests/common/test_train.py"],
    "sb3_grpo/common/reference.py": ["tests/common/test_kl.py", "tests/common/test_plugins.py"],
    "sb3_grpo/common/rewards.py": ["tests/common/test_rewards.py"],
    "sb3_grpo/common/sampling.py": ["tests/common/test_spaces.py", "tests/common/test_run.py"],
    "sb3_grpo/common/values.py": ["tests/common/test_values.py"],
    "sb3_grpo/grpo/grpo.py": [f"tests/common/test_{name}.py" for name in ("train", "values", "kl", "run")],
    "sb3_grpo/groups/collector.py": ["tests/groups"],
    "sb3_grpo/groups/dispatcher.py": ["tests/groups"],
    "sb3_grpo/groups/faults.py": ["tests/groups/test_faults.py"],
    "sb3_grpo/groups/group.py": ["tests/groups"],
    "sb3_grpo/groups/queue.py": ["tests/groups"],
    "sb3_grpo/groups/samplers.py": ["tests/groups/test_samplers.py"],
    "sb3_grpo/starts/atari.py": ["tests/starts/test_atari.py"],
    "sb3_grpo/starts/check_starts.py": ["tests/starts/test_check_starts.py"],
    "sb3_grpo/starts/differences.py": ["tests/starts"],
    "sb3_grpo/starts/known_envs.py": ["tests/starts"],
    "sb3_grpo/starts/probes.py": ["tests/starts/test_probes.py"],
    "sb3_grpo/starts/seeding.py": ["tests/starts/test_seeding.py"],
    "sb3_grpo/starts/snapshots.py": ["tests/starts/test_snapshots.py"],
    "sb3_grpo/starts/start_queue.py": ["tests/starts/test_start_queue.py"],
    "sb3_grpo/starts/starts.py": ["tests/starts"],
}
NEXT = ["tests/starts", "tests/groups", "tests/common"]
# Seconds without a passing test after which the tests count as hanging: they have noticed, too
TIMEOUT = 180
# Exit code of pytest: all tests of the selection are slow
NO_TESTS = 5
COLUMNS = ("module", "line", "column", "function", "original", "mutated", "caught", "by", "seconds")

# Each is replaced by the other
_PAIRS = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn), (ast.Add, ast.Sub)),
    *((ast.Mult, ast.Div), (ast.And, ast.Or)),
)
OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    **dict(_PAIRS),
    **{second: first for first, second in _PAIRS},
    **dict.fromkeys((ast.FloorDiv, ast.Mod, ast.Pow), ast.Mult),
}


class Mutation(NamedTuple):
    """
    A place in a module, and its replacement.

    :param module: Path from the project root
    :param function: In which function or class
    :param begin: Line and column, from 1 and from 0
    :param end: Line and column
    :param original: The original source
    :param mutated: Its replacement
    """

    module: str
    function: str
    begin: tuple[int, int]
    end: tuple[int, int]
    original: str
    mutated: str

    def apply(self, source: str) -> str:
        """
        :param source: Source of the module
        :return: The mutated source
        """
        lines = source.splitlines(keepends=True)
        first, last = self.begin[0] - 1, self.end[0] - 1
        # The columns of ast count bytes
        head, tail = lines[first].encode()[: self.begin[1]].decode(), lines[last].encode()[self.end[1] :].decode()
        return "".join([*lines[:first], head + self.mutated + tail, *lines[last + 1 :]])

    def row(self) -> dict[str, Any]:
        """
        :return: Its row in the table
        """
        place = {"module": self.module, "line": self.begin[0], "column": self.begin[1], "function": self.function}
        return place | {"original": " ".join(self.original.split()), "mutated": " ".join(self.mutated.split())}


class Finder(ast.NodeVisitor):
    """
    Finds what can be changed in a module: no texts, no error messages, no types.

    :param module: Path from the project root
    """

    def __init__(self, module: str):
        self.source = (ROOT / module).read_text()
        self.module = module
        self.functions: list[str] = []
        self.found: list[Mutation] = []
        self.visit(ast.parse(self.source))

    def add(self, node: ast.expr | ast.stmt, mutated: str) -> None:
        assert node.end_lineno is not None and node.end_col_offset is not None
        begin, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
        original = ast.get_source_segment(self.source, node) or ""
        self.found.append(Mutation(self.module, ".".join(self.functions), begin, end, original, mutated))

    def changed(self, node: ast.expr, **fields: Any) -> None:
        self.add(node, f"({ast.unparse(type(node)(**{**dict(ast.iter_fields(node)), **fields}))})")

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        self.functions.append(node.name)
        # Not the defaults: which number is good is not a matter of right and wrong
        for each in [*node.decorator_list, *node.body]:
            self.visit(each)
        self.functions.pop()

    visit_ClassDef = visit_FunctionDef

    def visit_Raise(self, node: ast.Raise) -> None:
        self.add(node, "pass")

    def visit_Assert(self, node: ast.Assert) -> None: ...

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None: ...

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            if not isinstance(node.test, ast.Compare | ast.UnaryOp):
                self.add(node.test, f"(not ({ast.unparse(node.test)}))")
            self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.changed(node, body=node.orelse, orelse=node.body)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.add(node, "pass")
            self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add(node, "pass")
        self.visit(node.value)

    def visit_Compare(self, node: ast.Compare) -> None:
        self.changed(node, ops=[OPERATORS[type(node.ops[0])](), *node.ops[1:]])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in OPERATORS:
            self.changed(node, op=OPERATORS[type(node.op)]())
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.changed(node, op=OPERATORS[type(node.op)]())
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            self.add(node, f"({ast.unparse(node.operand)})")
        self.visit(node.operand)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.add(node, str(not node.value))
        elif isinstance(node.value, int):
            self.add(node, str(node.value + 1))
        elif isinstance(node.value, float):
            self.add(node, repr(node.value * 2 if node.value else 1.0))


def draw(n: int | None, seed: int) -> list[Mutation]:
    """
    :param n: Number of mutations, None for all
    :param seed: Seed of the draw
    :return: Mutations, drawn from the modules in turn, so that small modules are covered as well as large ones
    """
    rng = random.Random(seed)
    found = [Finder(module).found for module in TARGETS]
    by_module = [rng.sample(of_module, len(of_module)) for of_module in found]
    in_turn = [mutation for of_each in zip_longest(*by_module) for mutation in of_each if mutation is not None]
    return in_turn[:n]


def run_tests(copy: Path, *selection: str) -> str:
    """
    :param copy: A copy of the project
    :param selection: Paths of tests, and options
    :return: The test that noticed something, "import" or "time limit"; empty if all pass
    """
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--no-header"]
    options += ["-m", "not slow and not long and not gpu"]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *selection],
            cwd=copy,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        # Each passing test writes a dot
        while process.poll() is None and time.time() - os.fstat(log.fileno()).st_mtime < TIMEOUT:
            time.sleep(0.5)
        hangs = process.poll() is None
        with suppress(ProcessLookupError):
            # Also what is left of the tests' own processes
            os.killpg(process.pid, signal.SIGKILL)
        if process.wait() in (0, NO_TESTS):
            return ""
        log.seek(0)
        failed = [line.split()[1] for line in log if line.startswith(("FAILED", "ERROR "))]
    return "time limit" if hangs else failed[0] if failed else "import"


def judge(mutation: Mutation, copy: Path) -> dict[str, Any]:
    """
    :param mutation: What to change
    :param copy: A copy of the project that no other process is using
    :return: A row of the table
    """
    path, begin, closest = copy / mutation.module, time.monotonic(), TARGETS[mutation.module]
    source = path.read_text()
    path.write_text(mutation.apply(source))
    try:
        by = run_tests(copy, *closest) or run_tests(copy, *NEXT, *(f"--ignore={tests}" for tests in closest))
    finally:
        path.write_text(source)
    return mutation.row() | {"caught": "yes" if by else "no", "by": by, "seconds": round(time.monotonic() - begin)}


def rows() -> Iterator[dict[str, Any]]:
    """
    :return: The rows of the table so far
    """
    if RESULTS.exists():
        with RESULTS.open(newline="") as file:
            yield from csv.DictReader(file)


def key(row: dict[str, Any]) -> tuple[str, ...]:
    """
    :param row: A row of the table
    :return: What distinguishes it from other mutations, also after lines were added above
    """
    return tuple(str(row[name]) for name in ("module", "function", "column", "original", "mutated"))


def main() -> None:
    """Run the mutations that do not have a row yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, help="how many mutations (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    done = {key(row): row for row in rows() if row["module"] in TARGETS}
    mutations = draw(args.sample, args.seed)
    RESULTS.parent.mkdir(exist_ok=True)
    free: SimpleQueue[Path] = SimpleQueue()

    def work(mutation: Mutation) -> dict[str, Any] | None:
        if key(mutation.row()) in done:
            return None
        copy = free.get()
        try:
            return judge(mutation, copy)
        finally:
            free.put(copy)

    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(args.processes) as pool:
        files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for number in range(args.processes):
            for name in filter(None, files.split("\0")):
                if not name.startswith("benchmarks/results") and (ROOT / name).exists():
                    (Path(scratch, str(number)) / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(ROOT / name, Path(scratch, str(number)) / name)
            free.put(Path(scratch, str(number)))
        for row in track(pool.map(work, mutations), total=len(mutations)):
            if row is not None:
                done[key(row)] = row
                with RESULTS.open("w", newline="") as file:
                    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                    writer.writeheader()
                    writer.writerows(sorted(done.values(), key=lambda each: (each["module"], int(each["line"]))))
    survivors = [row for row in done.values() if row["caught"] == "no"]
    for row in survivors:
        print(f"{row['module']}:{row['line']} {row['function']}: {row['original']} -> {row['mutated']}")
    print(f"{len(done) - len(survivors)} of {len(done)} caught")


if __name__ == "__main__":
    main()
