"""Text episodes in progress: the tokens written so far, answers, replies and rewards."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from sb3_grpo.envs.text.encoded_task import EncodedItem
from sb3_grpo.envs.text.rules import TextEpisodeRules
from sb3_grpo.envs.verifiers.runner import Check, Verdict
from sb3_grpo.starts.starts import StartMismatchError
from sb3_grpo.text.tokens import PAD


@dataclass(slots=True)
class Exchange:
    """
    The conversation in an episode.

    :param encoded: The item that the agent was asked
    :param messages: The agent's complete answers and the replies to them
    :param turn_start: Position of the first token of the current answer
    :param n_reply_tokens: Number of tokens of the replies so far
    """

    encoded: EncodedItem
    messages: list[str]
    turn_start: int
    n_reply_tokens: int = 0


class Ending(NamedTuple):
    """
    The end of an episode.

    :param reward: The reward of the last step
    :param truncated: Whether it was truncated, not terminated
    :param info: The info of the last step
    """

    reward: float
    truncated: bool
    info: dict[str, Any]


class TextEpisodes:
    """
    The episodes of N copies of the text environment, stepped together. All answers that end in the same step are passed to
    the verifier together.

    :param rules: The rules
    :param n_copies: Number of copies
    """

    def __init__(self, rules: TextEpisodeRules, n_copies: int):
        self.rules = rules
        self.tokens = np.full((n_copies, rules.length), PAD, np.int64)
        self.n_tokens = np.zeros(n_copies, np.int64)
        self.n_given = np.zeros(n_copies, np.int64)  # tokens written by the agent in this episode
        # Whether all copies have an episode in progress. Set by the environment when it has begun those that it needs
        self.in_progress = False
        self._exchanges: list[Exchange | None] = [None] * n_copies
        self._rows = np.arange(n_copies)

    def begin(self, idx: int, encoded: EncodedItem) -> dict[str, Any]:
        """
        :param idx: Index of the copy
        :param encoded: The item to ask the agent
        :return: The info for ``reset``
        """
        self._exchanges[idx] = Exchange(encoded, [], encoded.n_tokens)
        self.tokens[idx] = encoded.row
        self.n_tokens[idx], self.n_given[idx] = encoded.n_tokens, 0
        return {"prompt": encoded.item.prompt, "item": encoded.index}

    def check_in_progress(self) -> None:
        """
        :raises ResetNeeded: if a copy has no episode in progress
        """
        if not self.in_progress:
            raise gym.error.ResetNeeded(
                "The episode has not begun, has ended, or was ended by an error: call reset() before the next step() (a model "
                "that goes on with this environment does so after model.set_env(env))"
            )

    def step(self, actions: np.ndarray) -> dict[int, Ending]:
        """
        Append a token to each text.

        :param actions: (N,) tokens
        :return: The episodes that have ended, by the index of the copy, in order
        """
        # Reset below if no error is raised until then
        self.in_progress = False
        self.tokens[self._rows, self.n_tokens] = actions
        self.n_tokens += 1
        self.n_given += 1
        has_end = actions == self.rules.tokenizer.eos_id
        stopped = has_end | (self.n_given >= self.rules.max_answer_tokens)
        verdicts: dict[int, Verdict | None] = {}
        if stopped.any():
            verdicts = dict.fromkeys(np.flatnonzero(stopped & ~has_end).tolist())
            verdicts.update(self._end_answers(np.flatnonzero(has_end).tolist()))
        self.in_progress = not verdicts
        return {idx: self._end(idx, verdicts[idx]) for idx in sorted(verdicts)}

    def _end_answers(self, copies: list[int]) -> dict[int, Verdict | None]:
        """
        :param copies: Copies whose answer has just ended
        :return: For each copy whose episode ends with it, the verdict, or None if there is no room for the next answer
        """
        exchanges = {idx: self._exchange(idx) for idx in copies}
        for idx, exchange in exchanges.items():
            exchange.messages.append(self._answer(idx))
        verdicts: dict[int, Verdict | None] = {}
        if self.rules.multi_turn:
            replies = self.rules.runner.reply([(each.encoded.item, each.messages) for each in exchanges.values()])
            for (idx, exchange), reply in zip([*exchanges.items()], replies, strict=True):
                if reply.text is not None:
                    del exchanges[idx]
                    if not self._append_reply(idx, exchange, reply.text):
                        verdicts[idx] = None
                elif reply.error is not None:
                    del exchanges[idx]
                    verdicts[idx] = Verdict(0.0, reply.error)
        if exchanges:
            checks = [self._check(exchange) for exchange in exchanges.values()]
            verdicts.update(zip(exchanges, self.rules.runner.score(checks), strict=True))
        return verdicts

    def _append_reply(self, idx: int, exchange: Exchange, text: str) -> bool:
        """
        :param idx: Index of the copy
        :param exchange: Its conversation
        :param text: The task's reply
        :return: Whether there is room for it, and for an answer to it
        """
        reply = self.rules.tokenizer.encode(text)
        n_tokens = int(self.n_tokens[idx])
        exchange.messages.append(text)
        exchange.n_reply_tokens += len(reply)
        exchange.turn_start = n_tokens + len(reply)
        if self.n_given[idx] >= self.rules.max_answer_tokens or exchange.n_reply_tokens > self.rules.max_reply_tokens:
            return False
        self.tokens[idx, n_tokens : exchange.turn_start] = reply
        self.n_tokens[idx] = exchange.turn_start
        return True

    def _check(self, exchange: Exchange) -> Check:
        item = exchange.encoded.item
        return Check(exchange.messages[-1], self.rules.scorer.payload(item), item.prompt)

    def _end(self, idx: int, verdict: Verdict | None) -> Ending:
        """
        :param idx: Index of a copy whose episode has ended
        :param verdict: The verdict on its answer, None if the answer is not complete
        :return: The end of the episode
        """
        exchange, rules = self._exchange(idx), self.rules
        item = exchange.encoded.item
        score = 0.0 if verdict is None else verdict.score
        info = {
            "prompt": item.prompt,
            "item": exchange.encoded.index,
            "answer": self._answer(idx) if verdict is None else exchange.messages[-1],
            "reference": item.answer,
            "verdict": score,
            "is_success": score >= rules.success_score,
        }
        if rules.multi_turn:
            info["messages"] = list(exchange.messages)
        if verdict is not None and verdict.error is not None:
            info["verifier_error"] = verdict.error
        reward = rules.reward_wrong + score * (rules.reward_correct - rules.reward_wrong)
        return Ending(reward, verdict is None and rules.truncate, info)

    def _exchange(self, idx: int) -> Exchange:
        exchange = self._exchanges[idx]
        if exchange is None:
            raise gym.error.ResetNeeded("Call reset() first")
        return exchange

    def _answer(self, idx: int) -> str:
        """
        :param idx: Index of the copy
        :return: The text of its current answer
        """
        return self.rules.tokenizer.decode(self.tokens[idx, self._exchange(idx).turn_start : self.n_tokens[idx]].tolist())

    def transcript(self, idx: int) -> str:
        """
        :param idx: Index of the copy
        :return: The conversation so far, line by line
        """
        exchange = self._exchange(idx)
        ended = len(exchange.messages) % 2 == 1
        said = [exchange.encoded.item.prompt, *exchange.messages] + ([] if ended else [self._answer(idx)])
        return "\n".join(f"{'Agent' if turn % 2 else 'Task'}: {text}" for turn, text in enumerate(said))

    def get_state(self, idx: int) -> dict[str, Any]:
        """
        :param idx: Index of the copy
        :return: The state of its episode, for ``set_state`` with the same task
        """
        exchange = self._exchange(idx)
        return {
            "item": exchange.encoded.index,
            "prompt": exchange.encoded.item.prompt,
            "messages": list(exchange.messages),
            "turn_start": exchange.turn_start,
            "n_reply_tokens": exchange.n_reply_tokens,
            "tokens": self.tokens[idx, : self.n_tokens[idx]].copy(),
            "n_given": int(self.n_given[idx]),
            "ended": not self.in_progress,
        }

    def set_state(self, idx: int, state: dict[str, Any]) -> None:
        """
        :param idx: Index of the copy
        :param state: State returned by ``get_state``
        """
        rules = self.rules
        try:
            encoded = rules.encode_item(rules.check_index(state["item"]))
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
        self._exchanges[idx] = Exchange(encoded, list(state["messages"]), state["turn_start"], state["n_reply_tokens"])
        self.tokens[idx] = PAD
        self.tokens[idx, :n_tokens] = state["tokens"]
        self.n_tokens[idx], self.n_given[idx] = n_tokens, state["n_given"]
