"""Verifiers, which decide whether an answer is right."""

import contextlib
import math
import pickle
import re
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from decimal import Decimal
from typing import Any, NamedTuple

import cloudpickle

from sb3_grpo.envs.verifiers import math_answers
from sb3_grpo.envs.verifiers.math_answers import final_answer, is_text, may_equal, same_text, value_of, with_unit
from sb3_grpo.envs.verifiers.process import VerifierProcess, VerifierStartError, shared_process
from sb3_grpo.envs.verifiers.worker import RESULTS, describe
from sb3_grpo.utils.user_warnings import warn_user

Verifier = Callable[[str, str], float]

# The process that runs it does not import this package
cloudpickle.register_pickle_by_value(math_answers)

# Memory that a verifier with a name may use in addition, as sympy has no limit of its own
_N_BYTES = 4 * 2**30

# No exponents, as a model may also answer 1e999999999
_PLAIN_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)", re.ASCII)


class VerifierError(RuntimeError):
    """A verifier raised an exception, took too long, ended its process, or returned an invalid value."""


def is_equivalent(answer: str, reference: str) -> bool:
    """
    Whether two texts are equal up to surrounding white space, or are the same number: 7 and 07.0.

    :param answer: The agent's answer
    :param reference: The right answer
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
    :return: :func:`math_equivalent` as a function that runs in a process without this package
    """
    try:
        import math_verify
    except ImportError as error:
        raise ImportError('Comparing mathematics needs the package math-verify: pip install "sb3-grpo[text]"') from error

    # Do not strip units, as the last letter may be a variable: "x + m" must keep its m, and "5 m" is not "5 cm"
    latex = math_verify.LatexExtractionConfig()
    latex = replace(latex, normalization_config=replace(latex.normalization_config, units=False))
    extraction = [latex, math_verify.ExprExtractionConfig()]

    # As inner functions, they are sent to the process by value, which avoids importing this package there. Unpickling them
    # imports math_verify before the time limit of the first answer begins
    def with_signs(formula: str) -> str:
        """
        :param formula: A reference
        :return: The reference with the delimiters without which only numbers would be found in it
        """
        has_signs = re.search(r"(?<!\\)(?:\$|\\boxed|\\[(\[])", formula)
        # Units would be read as products of letters
        if has_signs or re.fullmatch(r"[-+\d.,]+%?(?:\s+[A-Za-z]{4,})+\.?", formula):
            return formula
        # Convert Python's notation: 1e-05 and x**2
        formula = re.sub(r"^([-+]?[0-9.]+)[eE]([-+]?[0-9]+)$", r"\1 \\cdot 10^{\2}", formula)
        return f"${formula.replace('**', '^')}$"

    def verify_math(answer: str, reference: str) -> float:
        import logging

        # It warns about answers that are too hard for it, but these are merely wrong
        logging.getLogger("math_verify").setLevel(logging.ERROR)
        # Solutions of GSM8K end with #### and the answer
        right = reference.rpartition("####")[2].strip()
        expected, unit = with_unit(final_answer(right) or right)
        found = final_answer(answer)
        if (number := value_of(expected, worked_out=False)) is not None:
            if found is not None and unit and found.casefold().endswith(unit.casefold()):
                found = found[: -len(unit)].strip()
            return float(answer.strip() == right or (found is not None and value_of(found) == number))
        if is_text(expected):
            return float(answer.strip() == right or (found is not None and same_text(found, expected)))
        # Parsing and comparing an answer take less than the environment's default limit, as an answer that is too hard is not
        # a failure of the verifier. The reference gets two attempts: it may exceed a second by chance, and is required
        gold = math_verify.parse(with_signs(right), extraction, parsing_timeout=1) or math_verify.parse(
            with_signs(right), extraction, parsing_timeout=1
        )
        if not gold:
            raise ValueError(
                f"math-verify finds nothing in the reference {reference!r:.200}, or not within 1 s. Write a number or a "
                "formula, or take verifier='exact'"
            )
        if answer.strip() == right or (found is not None and "".join(found.split()) == "".join(expected.split())):
            return 1.0
        if found is None or not may_equal(found, expected):
            return 0.0
        target = math_verify.parse(with_signs(found), extraction, parsing_timeout=1)
        return float(math_verify.verify(gold, target, timeout_seconds=2))

    return verify_math


def math_equivalent(answer: str, reference: str) -> bool:
    """
    Whether an answer is mathematically equal to the reference: 1/2 and 0.5, and formulas compared by math-verify. The answer
    is the whole text, or the part in ``\\boxed{}``, after ``####`` or after "the answer is" at its end, see
    docs/text_tasks.md. Only works in the main thread of a process.

    :param answer: The agent's answer
    :param reference: The right answer
    :return: True if they are equivalent
    """
    return bool(make_math_verifier()(answer, reference))


class Check(NamedTuple):
    """
    An answer to be scored.

    :param answer: The answer
    :param payload: The second argument of the verifier
    :param prompt: The prompt
    """

    answer: str
    payload: Any
    prompt: str


class Verdict(NamedTuple):
    """
    The result of scoring an answer.

    :param score: Score of the answer
    :param error: Error of the verifier, None if there was none
    """

    score: float
    error: str | None = None


class Reply(NamedTuple):
    """
    The task's reply to an answer.

    :param text: Text that the agent has to answer next, None if its last answer ends the episode
    :param error: Error of the task's ``reply``, None if there was none
    """

    text: str | None
    error: str | None = None


class _Call(NamedTuple):
    """
    A call of a verifier's function.

    :param arguments: Arguments of the function
    :param prompt: The prompt
    :param answer: The last answer
    """

    arguments: tuple[Any, ...]
    prompt: str
    answer: str


# The call and its return value; or the error, and the exception if it is known
_Result = tuple[_Call, Any, str | None, Exception | None]


class VerifierRunner:
    """
    Runs a verifier on lists of answers, and the function that replies to them in tasks with several turns. Unless they are
    trusted, they run in a separate process with a time limit.

    :param function: Takes an answer and something to compare it with, returns a number
    :param trusted: Whether ``function`` is known to be quick and safe, so that it can run in this process
    :param time_limit: Maximum seconds per answer
    :param on_error: ``"raise"`` a :class:`VerifierError`, or count the error and give a score of ``"zero"``. None: zero for a
        verifier with a name, otherwise raise
    :param reply: See :meth:`Task.reply`; None if there is only one turn
    :param reply_trusted: Like ``trusted``, for ``reply``
    :param name: See :class:`Scorer`
    :param n_bytes: Memory that the process of a verifier with a name may use, see :class:`VerifierProcess`
    """

    def __init__(
        self,
        function: Callable[[str, Any], Any],
        trusted: bool,
        time_limit: float = 5.0,
        on_error: str | None = None,
        reply: Callable[[Any, list[str]], str | None] | None = None,
        reply_trusted: bool = False,
        name: str | None = None,
        n_bytes: int = _N_BYTES,
    ):
        if not (time_limit > 0 and math.isfinite(time_limit)):
            raise ValueError(f"verifier_timeout={time_limit} has to be a number of seconds greater than 0")
        if on_error not in (None, "raise", "zero"):
            raise ValueError(f"on_verifier_error={on_error!r} has to be 'raise', 'zero' or None")
        self.time_limit, self.n_bytes = time_limit, None if name is None else n_bytes
        self.on_error = {"score": on_error or ("raise" if name is None else "zero"), "reply": on_error or "raise"}
        self.n_errors = 0
        functions: dict[str, Callable[..., Any]] = {"score": function, **({} if reply is None else {"reply": reply})}
        self._names = {
            key: getattr(each, "__qualname__", type(each).__name__) + ("" if key == "score" else ", which replies to answers,")
            for key, each in functions.items()
        }
        if name is not None:
            self._names["score"] = name
        there = {key for key, is_trusted in (("score", trusted), ("reply", reply_trusted)) if not is_trusted} & {*functions}
        self._here = {key: each for key, each in functions.items() if key not in there}
        self._pickled = _pickle({key: functions[key] for key in sorted(there)}) if there else None
        self._process: VerifierProcess | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A copy starts its own process when it needs one
        return {**vars(self), "_process": None}

    @property
    def worker_pid(self) -> int | None:
        """The process id of the worker, None if there is no worker."""
        return None if self._process is None else self._process.pid

    def score(self, checks: list[Check]) -> list[Verdict]:
        """
        :param checks: Answers to score
        :return: The verdict on each of them
        """
        calls = (_Call((check.answer, check.payload), check.prompt, check.answer) for check in checks)
        return [Verdict(0.0 if error else value, error) for value, error in self._results("score", calls)]

    def reply(self, exchanges: list[tuple[Any, list[str]]]) -> list[Reply]:
        """
        :param exchanges: Items with the messages so far, each ending with an answer
        :return: The reply to each of them
        """
        calls = (_Call((item, messages), item.prompt, messages[-1]) for item, messages in exchanges)
        return [Reply(value, error) for value, error in self._results("reply", calls)]

    def _results(self, key: str, calls: Iterable[_Call]) -> list[tuple[Any, str | None]]:
        """
        :param key: Key of the function
        :param calls: The calls
        :return: For each call, the result and None, or None and the error if errors are counted rather than raised
        """
        run = self._call_here if key in self._here else self._call_in_process
        # Closed here and not by the garbage collector, as it locks the process
        with contextlib.closing(run(key, calls)) as results:
            return [
                (value, None) if error is None else (None, self._fail(key, call, error, cause))
                for call, value, error, cause in results
            ]

    def _call_here(self, key: str, calls: Iterable[_Call]) -> Generator[_Result, None, None]:
        function, checked = self._here[key], RESULTS[key]
        for call in calls:
            result: _Result
            try:
                result = call, checked(function(*call.arguments)), None, None
            except Exception as error:
                result = call, None, describe(error), error
            yield result

    def _call_in_process(self, key: str, calls: Iterable[_Call]) -> Generator[_Result, None, None]:
        assert self._pickled is not None
        calls = list(calls)
        if not calls:
            return
        packed = [self._pack(key, call) for call in calls]
        if self._process is None:
            self._process = shared_process(self._pickled, self.n_bytes)
        try:
            with contextlib.closing(self._process.call(key, packed, self.time_limit)) as results:
                for call, (value, error) in zip(calls, results, strict=True):
                    yield call, value, error, None
        except VerifierStartError as start_error:
            message = f"The verifier {self._names[key]} cannot run in a process of its own: {start_error}"
            raise VerifierError(message) from start_error

    def _pack(self, key: str, call: _Call) -> bytes:
        try:
            return pickle.dumps(call.arguments)
        except Exception as error:
            raise TypeError(
                f"The verifier {self._names[key]} runs in a process of its own, and what belongs to this item cannot be sent "
                f"there ({type(error).__name__}: {error}). Keep plain data in its metadata (numbers, texts, lists, dicts). "
                "Let the verifier create the rest. If it is quick and safe, a task can have trusted = True: then it runs in "
                f"this process, without a time limit.\nPrompt: {call.prompt!r:.500}"
            ) from error

    def _fail(self, key: str, call: _Call, what: str, cause: Exception | None) -> str:
        message = (
            f"The verifier {self._names[key]} failed on an answer: {what}\n"
            f"Prompt: {call.prompt!r:.500}\nAnswer: {call.answer!r:.500}"
        )
        if self.on_error[key] == "raise":
            raise VerifierError(
                f"{message}\nCorrect the verifier, give it more time with verifier_timeout, or count such answers as failures "
                'with on_verifier_error="zero".'
            ) from cause
        if self.n_errors == 0:
            warn_user(f"{message}\nIt counts as 0, like all further failures (see info['verifier_error']).")
        self.n_errors += 1
        return what

    def close(self) -> None:
        """End the worker process, if there is one. It is restarted when needed."""
        if self._process is not None:
            self._process.close()
            self._process = None


def _pickle(functions: dict[str, Callable[..., Any]]) -> bytes:
    for function in functions.values():
        try:
            cloudpickle.dumps(function)
        except Exception as error:
            raise TypeError(
                f"The verifier {getattr(function, '__qualname__', type(function).__name__)} cannot be sent to its own process "
                f"({type(error).__name__}: {error}). Let it create what cannot be pickled (locks, open files, connections) "
                "when it is called, or import it from a module."
            ) from error
    # Pickled together, so that the methods of a task still share one task
    return cloudpickle.dumps(functions)
