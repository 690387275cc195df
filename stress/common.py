"""What the attempts to break the package share: a command line, a tally, and the file that the page *Trust* reads."""

import argparse
from collections import Counter, defaultdict
from typing import Any

import torch as th

from benchmarks.common import write_result

AS_PROMISED = ("read", "refused", "trains", "right")


class Tally:
    """Counts outcomes, and keeps those that are not as promised."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        self.wrong: list[dict[str, Any]] = []

    def add(self, kind: str, outcome: str, **case: Any) -> None:
        """
        :param kind: What was tried
        :param outcome: One of ``AS_PROMISED``, or what went wrong
        :param case: What a reader needs to try it again
        """
        is_wrong = outcome not in AS_PROMISED
        self.counts[kind]["wrong" if is_wrong else outcome] += 1
        if is_wrong:
            self.wrong.append({"kind": kind, **case, "outcome": outcome[:300]})
            print(self.wrong[-1], flush=True)

    def write(self, name: str, what: str, promise: str, **more: Any) -> None:
        """
        :param name: Name of the file
        :param what: What was tried
        :param promise: What is promised
        :param more: Further entries
        """
        n = sum(sum(each.values()) for each in self.counts.values())
        counts = {kind: dict(sorted(each.items())) for kind, each in sorted(self.counts.items())}
        write_trust(name, what, promise, n, self.wrong, counts=counts, **more)


def write_trust(name: str, what: str, promise: str, n: int, wrong: list[Any], **more: Any) -> None:
    """
    Write ``benchmarks/results/trust/NAME.json``, a row of the page *Trust*.

    :param name: Name of the file
    :param what: What was tried
    :param promise: What is promised
    :param n: How often it was tried
    :param wrong: The cases where the promise was not kept
    :param more: Further entries
    """
    found = {"what": what, "promise": promise, "n": n, "as_promised": n - len(wrong), **more, "wrong": wrong}
    write_result(f"trust/{name}.json", found)
    print(f"{n} tried, {n - len(wrong)} as promised")


def parse(doc: str | None, option: str, default: int) -> tuple[int, int]:
    """
    :param doc: Docstring of the script
    :param option: The option that says how often to try
    :param default: Its default
    :return: How often to try, and the seed
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(option, dest="n", type=int, default=default)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    th.set_num_threads(1)
    return args.n, args.seed
