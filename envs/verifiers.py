"""Verifiers: what says whether an answer is right."""

import math
import re
import warnings
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import cloudpickle

from .verifier_process import VerifierProcess, VerifierStartError, shared_process
from .verifier_worker import as_score, describe

Verifier = Callable[[str, str], float]

# No exponents: 1e999999999 is an answer that a model may give, too
_PLAIN_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)", re.ASCII)


class VerifierError(RuntimeError):
    """A verifier raised an exception, took too long, ended its process, or returned something else than a number."""


def is_equivalent(answer: str, reference: str) -> bool:
    """
    Whether two texts are the same up to white space around them, or are the same number: 7 and 07.0.

    :param answer: The agent's answer
    :param reference: The right one
    :return: True if they are equivalent
    """
    answer, reference = answer.strip(), reference.strip()
    if answer == reference:
        return True
    if _PLAIN_NUMBER.fullmatch(answer) and _PLAIN_NUMBER.fullmatch(reference):
        return Decimal(answer) == Decimal(reference)
    return False


def make_math_verifier() -> Verifier:
    """
    :return: The same as :func:`math_equivalent`, as a function whose process does not need this package
    """
    try:
        import math_verify  # noqa: F401
    except ImportError as error:
        raise ImportError('Comparing mathematics needs the package math-verify: pip install "sb3-grpo[text]"') from error

    # Defined in here, it is sent to its process by value: without what the import of this package takes
    def verify_math(answer: str, reference: str) -> float:
        import logging

        from math_verify import parse, verify

        # It reports answers that are too hard for it as warnings. They are merely wrong.
        logging.getLogger("math_verify").setLevel(logging.ERROR)
        # Together less than the default limit of the environment: too hard an answer is no mistake of the verifier
        gold, target = parse(reference, parsing_timeout=1), parse(answer, parsing_timeout=1)
        return float(verify(gold, target, timeout_seconds=2))

    return verify_math


def math_equivalent(answer: str, reference: str) -> bool:
    """
    Whether an answer is mathematically the same as the reference, by math-verify: 1/2 and 0.5. It finds the
    answer in a text around it; formulas need ``$``. Only for the main thread of a process.

    :param answer: The agent's answer
    :param reference: The right one
    :return: True if they are equivalent
    """
    return bool(make_math_verifier()(answer, reference))


class Check(NamedTuple):
    """
    An answer to be scored.

    :param answer: The answer
    :param payload: The second argument of the verifier
    :param prompt: What was asked
    """

    answer: str
    payload: Any
    prompt: str


class Verdict(NamedTuple):
    """
    :param score: What the answer is worth
    :param error: What went wrong with the verifier, None if nothing
    """

    score: float
    error: str | None = None


class VerifierRunner:
    """
    Runs a verifier on lists of answers. Unless it is trusted, it runs in a process of its own with a time limit.

    :param function: Gets an answer and something to compare it with, returns a number
    :param trusted: Whether it is known to be quick and safe, and can run in this process
    :param time_limit: Seconds for each answer
    :param on_error: ``"raise"`` a :class:`VerifierError`, or count it and give ``"zero"``
    """

    def __init__(self, function: Callable[[str, Any], Any], trusted: bool, time_limit: float = 5.0, on_error: str = "raise"):
        if not (time_limit > 0 and math.isfinite(time_limit)):
            raise ValueError(f"verifier_timeout={time_limit} has to be a number of seconds greater than 0")
        if on_error not in ("raise", "zero"):
            raise ValueError(f"on_verifier_error={on_error!r} has to be 'raise' or 'zero'")
        self.name = getattr(function, "__qualname__", type(function).__name__)
        self.time_limit, self.on_error = time_limit, on_error
        self.n_errors = 0
        self._function = function if trusted else None
        self._pickled = None if trusted else _pickle(function, self.name)
        self._process: VerifierProcess | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A copy starts a process of its own when it needs one
        return {**vars(self), "_process": None}

    @property
    def worker_pid(self) -> int | None:
        """The process id of the worker, None where there is none."""
        return None if self._process is None else self._process.pid

    def score(self, checks: list[Check]) -> list[Verdict]:
        """
        :param checks: Answers
        :return: What each of them is worth
        """
        if self._function is not None:
            return [self._score_here(self._function, check) for check in checks]
        if not checks:
            return []
        assert self._pickled is not None
        if self._process is None:
            self._process = shared_process(self._pickled)
        verdicts = []
        results = self._process.check([(check.answer, check.payload) for check in checks], self.time_limit)
        try:
            for check, (score, error) in zip(checks, results, strict=True):
                verdicts.append(Verdict(score, None) if score is not None else self._fail(check, str(error)))
        except VerifierStartError as error:
            raise VerifierError(f"The verifier {self.name} cannot run in a process of its own: {error}") from error
        finally:
            # Not left to the garbage collector: it holds the process
            results.close()  # type: ignore[attr-defined]
        return verdicts

    def _score_here(self, function: Callable[[str, Any], Any], check: Check) -> Verdict:
        try:
            return Verdict(as_score(function(check.answer, check.payload)))
        except Exception as error:
            return self._fail(check, describe(error), error)

    def _fail(self, check: Check, what: str, cause: Exception | None = None) -> Verdict:
        message = (
            f"The verifier {self.name} failed on an answer: {what}\n"
            f"Prompt: {check.prompt!r:.500}\nAnswer: {check.answer!r:.500}"
        )
        if self.on_error == "raise":
            raise VerifierError(
                f"{message}\nCorrect the verifier, give it more time with verifier_timeout, or count such answers as "
                'failures with on_verifier_error="zero".'
            ) from cause
        if self.n_errors == 0:
            warnings.warn(f"{message}\nIt counts as 0, like all further failures (see info['verifier_error']).")
        self.n_errors += 1
        return Verdict(0.0, what)

    def close(self) -> None:
        """End the worker process, where there is one. It is started again if it is needed again."""
        if self._process is not None:
            self._process.close()
            self._process = None


def _pickle(function: Callable[[str, Any], Any], name: str) -> bytes:
    try:
        return cloudpickle.dumps(function)
    except Exception as error:
        raise TypeError(
            f"The verifier {name} cannot be sent to its own process ({type(error).__name__}: {error}). Let it create what "
            "cannot be pickled (locks, open files, connections) when it is called, or import it from a module."
        ) from error
