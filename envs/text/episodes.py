"""Text episodes in progress."""

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sb3_grpo.envs.text.rules import EncodedItem, TextEpisodeRules
from sb3_grpo.envs.verifiers.runner import Check, Verdict
from sb3_grpo.starts.starts import StartMismatchError
from sb3_grpo.text.tokens import PAD, TokenSpace


@dataclass(slots=True)
class Exchange:
    """
    The conversation in an episode.

    :param encoded: The item that the agent was asked
    :param messages: The agent's complete answers and the replies to them
    :param n_reply_tokens: Number of tokens of the replies so far
    """

    encoded: EncodedItem
    messages: list[str]
    n_reply_tokens: int = 0

    def check(self, payload: Any) -> Check:
        """
        :param payload: See :class:`Check`
        :return: The last answer, to be scored or replied to
        """
        return Check(self.messages[-1], payload, self.encoded.item.prompt)


def _changeable(name: str) -> Any:
    return property(
        lambda self: getattr(self.rules, name),
        lambda self, value: self.rules.change(**{name: value}),
        doc=f"See rules.{name}",
    )


class TextEpisodes:
    """
    What both text environments are: N episodes, stepped together. All answers that end in the same step are passed to the
    verifier together.

    :param rules: The rules
    :param n_copies: Number of copies
    """

    reward_correct = _changeable("reward_correct")
    reward_wrong = _changeable("reward_wrong")
    success_score = _changeable("success_score")
    truncate = _changeable("truncate")

    def __init__(self, rules: TextEpisodeRules, n_copies: int):
        self.rules = rules
        self.observation_space = TokenSpace(rules.length, rules.tokenizer, rules.stop)
        self.action_space = spaces.Discrete(rules.tokenizer.vocab_size)
        self._tokens = np.full((n_copies, rules.length), PAD, np.int64)
        self._n_tokens = np.zeros(n_copies, np.int64)
        self._turn_starts = np.zeros(n_copies, np.int64)  # position of the first token of the current answer
        self._n_given = np.zeros(n_copies, np.int64)  # tokens written by the agent in this episode
        self._returns = np.zeros(n_copies)  # sums of the rewards in this episode
        self._exchanges: list[Exchange] = [None] * n_copies  # type: ignore[list-item]
        self._rows = np.arange(n_copies)
        # Whether all copies have an episode in progress. Set by the environment when it has begun those that it needs
        self._in_progress = False

    @property
    def verifier_errors(self) -> int:
        """Number of failures of the verifier that were counted as wrong answers."""
        return self.rules.runner.n_errors

    def worked_examples(self, n: int, seed: int = 0) -> list[tuple[str, str]]:
        """
        :param n: Number of examples, all different
        :param seed: Seed for drawing them
        :return: Pairs of prompt, as the agent reads it, and answer, see :meth:`Task.worked_examples`
        """
        return [(self.rules.prompts.text(prompt), answer) for prompt, answer in self.rules.task.worked_examples(n, seed)]

    def close(self) -> None:
        """End the verifier's process."""
        self.rules.runner.close()

    def _begin(self, idx: int, encoded: EncodedItem) -> dict[str, Any]:
        """
        :param idx: Index of the copy
        :param encoded: The item to ask the agent
        :return: The info for ``reset``
        """
        self._exchanges[idx] = Exchange(encoded, [])
        self._tokens[idx] = encoded.row
        self._n_tokens[idx] = self._turn_starts[idx] = encoded.n_tokens
        self._n_given[idx] = self._returns[idx] = 0
        return {"prompt": encoded.item.prompt, "item": encoded.index}

    def _check_in_progress(self) -> None:
        if not self._in_progress:
            raise gym.error.ResetNeeded(
                "The episode has not begun, has ended, or was ended by an error: call reset() before the next step() (a model "
                "that goes on with this environment does so after model.set_env(env))"
            )

    def _write(self, actions: np.ndarray) -> tuple[np.ndarray, dict[int, tuple[bool, dict[str, Any]]]]:
        """
        Append a token to each text.

        :param actions: (N,) tokens
        :return: (N,) rewards; for each copy whose episode has ended, in order: whether it was truncated, not terminated, and
            the info of the last step
        """
        self._check_in_progress()
        n_copies, vocab_size = len(self._rows), self.rules.tokenizer.vocab_size
        is_whole = actions.shape == (n_copies,) and actions.dtype.kind in "iu"
        if not is_whole or actions.min() < 0 or actions.max() >= vocab_size:
            raise ValueError(
                f"Expected a token from 0 to {vocab_size - 1} as the action of each copy, {n_copies} whole numbers, got an "
                f"array of shape {actions.shape} and type {actions.dtype}: {actions.tolist()!r:.200}"
            )
        # Set below if no error is raised until then
        self._in_progress = False
        self._tokens[self._rows, self._n_tokens] = actions
        self._n_tokens += 1
        self._n_given += 1
        has_end = self.observation_space.ends(self._tokens, self._turn_starts, self._n_tokens)
        is_cut = ~has_end & (self._n_given >= self.rules.max_answer_tokens)
        verdicts: dict[int, Verdict | None] = dict.fromkeys(np.flatnonzero(is_cut).tolist())
        rewards, endings = np.zeros(n_copies), {}
        if has_end.any():
            verdicts.update(self._end_answers(np.flatnonzero(has_end).tolist(), rewards))
        unfinished = [idx for idx, verdict in verdicts.items() if verdict is None]
        if unfinished and self.rules.scores_unfinished:
            for idx in unfinished:
                self._exchanges[idx].messages.append(self._answer(idx))
            verdicts.update(self._score({idx: self._exchanges[idx] for idx in unfinished}))
        self._in_progress = not verdicts
        for idx in sorted(verdicts):
            reward, info = self._end(idx, verdicts[idx])
            rewards[idx] += reward
            endings[idx] = idx in unfinished and self.rules.truncate, info
        self._returns += rewards
        return rewards, endings

    def _end_answers(self, copies: list[int], rewards: np.ndarray) -> dict[int, Verdict | None]:
        """
        :param copies: Copies whose answer has just ended
        :param rewards: (N,) rewards of this step, to which those that come with replies are added
        :return: For each copy whose episode ends with it, the verdict, or None if there is no room for the next answer
        """
        exchanges = {idx: self._exchanges[idx] for idx in copies}
        for idx, exchange in exchanges.items():
            exchange.messages.append(self._answer(idx))
        verdicts: dict[int, Verdict | None] = {}
        if self.rules.multi_turn:
            replies = self.rules.runner.reply([each.check((each.encoded.item, each.messages)) for each in exchanges.values()])
            for idx, reply in zip(copies, replies, strict=True):
                rewards[idx] += reply.reward
                if reply.error is not None:
                    verdicts[idx] = reply
                elif reply.value is None:
                    continue
                elif not self._append_reply(idx, reply.value):
                    if self.rules.scores_unfinished:
                        exchanges[idx].messages.pop()
                        continue  # the last answer is scored
                    verdicts[idx] = None
                del exchanges[idx]
        return {**verdicts, **self._score(exchanges)}

    def _score(self, exchanges: dict[int, Exchange]) -> dict[int, Verdict]:
        payload = self.rules.scorer.payload
        scores = self.rules.runner.score([each.check(payload(each.encoded.item)) for each in exchanges.values()])
        return dict(zip(exchanges, scores, strict=True))

    def _append_reply(self, idx: int, text: str) -> bool:
        """
        :param idx: Index of the copy
        :param text: The task's reply
        :return: Whether there is room for it, and for an answer to it
        """
        exchange, n_tokens = self._exchanges[idx], int(self._n_tokens[idx])
        reply = self.rules.prompts.encode_reply(text, int(self._tokens[idx, n_tokens - 1]))
        exchange.messages.append(text)
        exchange.n_reply_tokens += len(reply)
        self._turn_starts[idx] = n_tokens + len(reply)
        if self._n_given[idx] >= self.rules.max_answer_tokens or exchange.n_reply_tokens > self.rules.max_reply_tokens:
            return False
        self._tokens[idx, n_tokens : n_tokens + len(reply)] = reply
        self._n_tokens[idx] += len(reply)
        return True

    def _end(self, idx: int, verdict: Verdict | None) -> tuple[float, dict[str, Any]]:
        """
        :param idx: Index of a copy whose episode has ended
        :param verdict: The verdict on its answer, None if the answer is not complete
        :return: The reward for it, and the info of the last step
        """
        exchange, rules = self._exchanges[idx], self.rules
        item = exchange.encoded.item
        lowest, _ = rules.score_range or (0.0, 1.0)
        score = lowest if verdict is None else verdict.value
        info = {
            "prompt": item.prompt,
            "item": exchange.encoded.index,
            "answer": self._answer(idx) if verdict is None else exchange.messages[-1],
            "reference": item.answer,
            "verdict": score,
            # As exact as the range of scores
            "is_success": score >= rules.success_score - 1e-6,
        }
        if rules.multi_turn:
            info["messages"] = list(exchange.messages)
        if verdict is not None and verdict.parts:
            # In units of the reward
            scale = rules.reward_correct - rules.reward_wrong
            info["reward_parts"] = verdict.parts
            info["reward_weights"] = {name: scale * rules.weights.get(name, 1.0) for name in verdict.parts}
        if verdict is not None and verdict.error is not None:
            info["verifier_error"] = verdict.error
        reward = rules.reward_wrong + score * (rules.reward_correct - rules.reward_wrong)
        return reward, info

    def _answer(self, idx: int) -> str:
        """
        :param idx: Index of the copy
        :return: The text of its current answer
        """
        return self.observation_space.decode_answer(self._tokens[idx, self._turn_starts[idx] : self._n_tokens[idx]].tolist())

    def _get_episode(self, idx: int) -> dict[str, Any]:
        """
        :param idx: Index of the copy
        :return: The state of its episode, for ``_set_episode`` with the same task
        """
        exchange = self._exchanges[idx]
        if exchange is None:
            raise gym.error.ResetNeeded("There is no episode yet: call reset() first")
        return {
            "item": exchange.encoded.index,
            "prompt": exchange.encoded.item.prompt,
            "messages": list(exchange.messages),
            "turn_start": int(self._turn_starts[idx]),
            "n_reply_tokens": exchange.n_reply_tokens,
            "tokens": self._tokens[idx, : self._n_tokens[idx]].copy(),
            "n_given": int(self._n_given[idx]),
            "return": float(self._returns[idx]),
            "ended": not self._in_progress,
        }

    def _set_episode(self, idx: int, state: dict[str, Any]) -> None:
        """
        :param idx: Index of the copy
        :param state: State returned by ``_get_episode``
        """
        rules = self.rules
        try:
            encoded = rules.encode_item(state["item"])
        except ValueError as error:
            raise StartMismatchError(f"The state was taken with another task: {error}") from error
        n_tokens = len(state["tokens"])
        is_full = state["n_given"] >= rules.max_answer_tokens and not state["ended"]
        prompt = encoded.row[: encoded.n_tokens]
        is_another = encoded.item.prompt != state["prompt"] or not np.array_equal(state["tokens"][: len(prompt)], prompt)
        if is_another or n_tokens > rules.length or is_full:
            raise StartMismatchError(
                f"The state was taken with another task or tokenizer, or more room for tokens: it has {n_tokens} tokens with "
                f"the prompt {state['prompt']!r:.200}, of which the agent wrote {state['n_given']}. Here there is room for "
                f"{rules.length} tokens, of which the agent writes {rules.max_answer_tokens}, and item {state['item']} is "
                f"{encoded.item.prompt!r:.200}."
            )
        self._exchanges[idx] = Exchange(encoded, list(state["messages"]), state["n_reply_tokens"])
        self._tokens[idx] = PAD
        self._tokens[idx, :n_tokens] = state["tokens"]
        self._n_tokens[idx], self._turn_starts[idx], self._n_given[idx] = n_tokens, state["turn_start"], state["n_given"]
        self._returns[idx] = state["return"]
