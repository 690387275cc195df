"""Runs verifiers, which decide whether an answer is right."""

import pickle
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import cloudpickle

from sb3_grpo.envs.verifiers.process import VerifierError, VerifierProcess
from sb3_grpo.envs.verifiers.scores import Scoring, checked_reply, score, scores
from sb3_grpo.envs.verifiers.worker import describe
from sb3_grpo.utils.parameters import Number
from sb3_grpo.utils.plugins import name_of
from sb3_grpo.utils.user_warnings import warn_user

# Memory that a verifier with a name may use in addition, as sympy has no limit of its own
_N_BYTES = 4 * 2**30

# All environments of this process whose functions and limit are the same share a worker
_processes: "weakref.WeakValueDictionary[tuple[bytes, int | None], VerifierProcess]" = weakref.WeakValueDictionary()


class Check(NamedTuple):
    """
    An answer to be scored or replied to.

    :param answer: The answer, or a list of answers
    :param payload: The second argument of the verifier; for a reply, the item and all messages
    :param prompt: The prompt
    """

    answer: Any
    payload: Any
    prompt: Any


class Verdict(NamedTuple):
    """
    What a verifier or a task says about an answer.

    :param value: The score, or the reply; the smallest score in case of an error
    :param error: The error, None if there was none
    :param parts: The parts of the score, by name
    :param reward: The reward that comes with the reply
    """

    value: Any
    error: str | None = None
    parts: dict[str, float] | None = None
    reward: float = 0.0


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
    :param scoring: How scores are made from what ``function`` returns
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
        scoring: Scoring = Scoring(),  # noqa: B008  it does not change
    ):
        self.time_limit = Number(positive=True).check("verifier_timeout", time_limit)
        if on_error not in (None, "raise", "zero"):
            raise ValueError(f"on_verifier_error={on_error!r} has to be 'raise', 'zero' or None")
        self.n_errors, self._n_bytes = 0, None if name is None else n_bytes
        self._on_error = {"score": on_error or ("raise" if name is None else "zero"), "reply": on_error or "raise"}
        self._names = {"score": name or name_of(function)}
        self._batched = scoring.batched
        self._lowest = 0.0 if scoring.limits is None else scoring.limits[0]
        functions: dict[str, Callable[..., Any]] = {"score": partial(scores if scoring.batched else score, function, scoring)}
        if reply is not None:
            self._names["reply"] = f"{name_of(reply)}, which replies to answers,"
            functions["reply"] = partial(checked_reply, reply)
        trusts = {"score": trusted, "reply": reply_trusted}
        self._here = {key: each for key, each in functions.items() if trusts[key]}
        there = {key: each for key, each in functions.items() if not trusts[key]}
        # Pickled together, so that the methods of a task still share one task
        try:
            self._pickled = cloudpickle.dumps(there)
        except Exception as error:
            raise TypeError(
                f"The verifier {' or '.join(self._names[key] for key in there)} cannot be sent to its own process "
                f"({type(error).__name__}: {error}). Let it create what cannot be pickled (locks, open files, connections) "
                "when it is called, or import it from a module."
            ) from error
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
        :return: The verdict on each of them, whose value is a number
        """
        return self._score_together(checks) if self._batched and checks else self._run("score", checks)

    def reply(self, checks: list[Check]) -> list[Verdict]:
        """
        :param checks: Answers to reply to
        :return: The verdict on each of them, whose value is a text, or None if the answer ends the episode
        """
        return self._run("reply", checks)

    def _score_together(self, checks: list[Check]) -> list[Verdict]:
        together = Check([each.answer for each in checks], [each.payload for each in checks], checks[0].prompt)
        [(results, error)] = self._call("score", [self._packed("score", together)])
        if error is None:
            return [Verdict(value, parts=parts) for value, parts in results]
        if len(checks) == 1:
            return [self._failure("score", checks[0], error)]
        # One after the other: each has the time limit, and an error is that of one of them
        return [verdict for each in checks for verdict in self._score_together([each])]

    def _run(self, key: str, checks: list[Check]) -> list[Verdict]:
        if key not in self._here:
            return self._run_in_process(key, checks)
        verdicts = []
        for check in checks:
            try:
                verdicts.append(_verdict(key, self._here[key](check.answer, check.payload)))
            except Exception as error:
                verdicts.append(self._failure(key, check, describe(error), error))
        return verdicts

    def _run_in_process(self, key: str, checks: list[Check]) -> list[Verdict]:
        results = self._call(key, [self._packed(key, check) for check in checks])
        return [
            _verdict(key, value) if error is None else self._failure(key, check, error)
            for check, (value, error) in zip(checks, results, strict=False)
        ]

    def _packed(self, key: str, check: Check) -> bytes:
        try:
            return pickle.dumps((check.answer, check.payload))
        except Exception as error:
            raise TypeError(
                f"The verifier {self._names[key]} runs in a process of its own, and what belongs to this item cannot be "
                f"sent there ({type(error).__name__}: {error}). Keep plain data in its metadata (numbers, texts, lists, "
                "dicts). Let the verifier create the rest. If it is quick and safe, a task can have trusted = True: then "
                f"it runs in this process, without a time limit.\nPrompt: {check.prompt!r:.500}"
            ) from error

    def _call(self, key: str, packed: list[bytes]) -> list[tuple[Any, str | None]]:
        if self._process is None:
            new = VerifierProcess(self._pickled, self._n_bytes)
            self._process = _processes.setdefault((self._pickled, self._n_bytes), new)
        return self._process.call(key, packed, self.time_limit, stop=self._on_error[key] == "raise")

    def _failure(self, key: str, check: Check, what: str, cause: Exception | None = None) -> Verdict:
        message = (
            f"The verifier {self._names[key]} failed on an answer: {what}\n"
            f"Prompt: {check.prompt!r:.500}\nAnswer: {check.answer!r:.500}"
        )
        if self._on_error[key] == "raise":
            raise VerifierError(
                f"{message}\nCorrect the verifier, give it more time with verifier_timeout, or count such answers as failures "
                'with on_verifier_error="zero".'
            ) from cause
        if self.n_errors == 0:
            lowest = f"{self._lowest:g}"
            warn_user(f"{message}\nIt counts as {lowest}, like all further failures (see info['verifier_error']).")
        self.n_errors += 1
        return Verdict(self._lowest, what)

    def close(self) -> None:
        """End the worker process, if there is one. It is restarted when needed."""
        if self._process is not None:
            self._process.close()
            self._process = None


def _verdict(key: str, result: tuple[Any, Any]) -> Verdict:
    value, more = result
    return Verdict(value, parts=more) if key == "score" else Verdict(value, reward=more)
