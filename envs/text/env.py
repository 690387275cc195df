"""The text environment: the agent writes an answer token by token, and a verifier scores it at the end."""

from typing import Any

import gymnasium as gym
import numpy as np

from sb3_grpo.envs.text.rules import Exchange, HasRules, TextEpisodeRules, Turn
from sb3_grpo.envs.verifiers.runner import Verdict
from sb3_grpo.starts.starts import StartMismatchError
from sb3_grpo.text.tokens import PAD


class VerifierTextEnv(HasRules, gym.Env):
    """
    The agent reads a prompt and writes one token per step; a verifier scores the finished answer.

    An observation is the whole text so far (prompt, answer and replies), padded on the right with ``PAD``: tokens are only
    ever appended. The action is the next token. The end-of-text token passes the answer to the verifier (or to the task,
    which may reply; then the episode goes on). After ``max_answer_tokens`` tokens, the episode is truncated (terminated with
    ``truncate=False``), and an unfinished answer is wrong. All rewards before the last one are 0.

    ``reset(options={"item": k})`` begins with item k of the task.

    :param task: The task, see :func:`make_task`
    :param render_mode: ``"ansi"``, with which ``render`` returns the conversation, or None
    :param settings: Parameters of :class:`TextEpisodeRules`
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012

    def __init__(self, task: Any = "arithmetic", *, render_mode: str | None = None, **settings: Any):
        check_render_mode(render_mode)
        self._set_up(TextEpisodeRules(task, **settings), render_mode)

    @classmethod
    def from_rules(cls, rules: TextEpisodeRules) -> "VerifierTextEnv":
        """
        :param rules: Rules, which several environments can share
        :return: An environment with these rules
        """
        env = cls.__new__(cls)
        env._set_up(rules, None)
        return env

    def _set_up(self, rules: TextEpisodeRules, render_mode: str | None) -> None:
        self.rules = rules
        self.render_mode = render_mode
        self.observation_space, self.action_space = rules.make_spaces()
        self._exchange: Exchange | None = None
        self._ended = False
        self._tokens = np.full(rules.length, PAD, np.int64)
        self._n_tokens = self._n_given = 0

    @property
    def verifier_errors(self) -> int:
        """Number of failures of the verifier that were counted as wrong answers."""
        return self.rules.runner.n_errors

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """
        :param seed: Seed of the generator that draws the item
        :param options: ``{"item": k}`` chooses item k
        :return: The prompt as observation, and an info with its text and the index of the item
        """
        super().reset(seed=seed)
        encoded = self.rules.choose_item(options, self.np_random)
        self._exchange, info = self.rules.begin(encoded)
        self._tokens = encoded.row.copy()
        self._n_tokens, self._n_given, self._ended = encoded.n_tokens, 0, False
        return self._tokens.copy(), info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """
        :param action: The next token
        :return: Observation, reward, terminated, truncated, and an info that has the verdict if the episode has ended
        """
        exchange = self._present()
        if self._ended:
            raise gym.error.ResetNeeded("The episode has ended, or was ended by an error: call reset() before the next step()")
        if not self.action_space.contains(action):
            raise ValueError(f"Expected a token from 0 to {self.rules.tokenizer.vocab_size - 1} as the action, got {action!r}")
        token = int(action)
        # Reset below if no error is raised until then
        self._ended = True
        self._tokens[self._n_tokens] = token
        self._n_tokens += 1
        self._n_given += 1
        terminated = False
        truncated = self._n_given >= self.rules.max_answer_tokens
        if token == self.rules.tokenizer.eos_id:
            terminated, truncated = self._end_turn(exchange)
        if not (terminated or truncated):
            self._ended = False
            return self._tokens.copy(), 0.0, False, False, {}
        verdict: Verdict | None = self.rules.score([exchange])[0] if terminated else None
        reward, info = self.rules.outcome(exchange, verdict, self._tokens, self._n_tokens)
        truncated = truncated and self.rules.truncate
        return self._tokens.copy(), reward, not truncated, truncated, info

    def _end_turn(self, exchange: Exchange) -> tuple[bool, bool]:
        turn = Turn(exchange, self._tokens, self._n_tokens, self._n_given)
        complete, reply = self.rules.end_turns([turn])[0]
        if reply is None:
            return complete, not complete
        self._tokens[self._n_tokens : self._n_tokens + len(reply)] = reply
        self._n_tokens += len(reply)
        return False, False

    def _present(self) -> Exchange:
        if self._exchange is None:
            raise gym.error.ResetNeeded("Call reset() first")
        return self._exchange

    def render(self) -> str | None:
        """
        :return: The conversation in this episode
        """
        if self.render_mode is None:
            gym.logger.warn("render() without a render_mode: create the environment with render_mode='ansi'")
            return None
        return self.rules.transcript(self._present(), self._tokens, self._n_tokens)

    def get_state(self) -> dict[str, Any]:
        """
        :return: The state of the episode, for ``set_state`` of this or another environment with the same task
        """
        exchange = self._present()
        return {
            "item": exchange.encoded.index,
            "prompt": exchange.encoded.item.prompt,
            "messages": list(exchange.messages),
            "turn_start": exchange.turn_start,
            "n_reply_tokens": exchange.n_reply_tokens,
            "tokens": self._tokens[: self._n_tokens].copy(),
            "n_given": self._n_given,
            "ended": self._ended,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """
        :param state: State returned by ``get_state``
        """
        try:
            encoded = self.rules.encode_item(self.rules.check_index(state["item"]))
        except ValueError as error:
            raise StartMismatchError(f"The state was taken with another task: {error}") from error
        n_tokens = len(state["tokens"])
        is_full = state["n_given"] >= self.rules.max_answer_tokens and not state["ended"]
        prompt = encoded.row[: encoded.n_tokens]
        is_another = encoded.item.prompt != state["prompt"] or not np.array_equal(state["tokens"][: len(prompt)], prompt)
        if is_another or n_tokens > self.rules.length or is_full:
            raise StartMismatchError(
                f"The state was taken with another task or tokenizer, or more room for tokens: it has {n_tokens} tokens with "
                f"the prompt {state['prompt']!r:.200}, of which the agent wrote {state['n_given']}. Here there is room for "
                f"{self.rules.length} tokens, of which the agent writes {self.rules.max_answer_tokens}, and item "
                f"{state['item']} is {encoded.item.prompt!r:.200}."
            )
        self._exchange = Exchange(encoded, list(state["messages"]), state["turn_start"], state["n_reply_tokens"])
        self._tokens = np.full(self.rules.length, PAD, np.int64)
        self._tokens[:n_tokens] = state["tokens"]
        self._n_tokens, self._n_given, self._ended = n_tokens, state["n_given"], state["ended"]

    def close(self) -> None:
        """End the verifier's process."""
        self.rules.close()


def check_render_mode(render_mode: str | None) -> None:
    """
    :param render_mode: The requested render mode
    """
    if render_mode not in (None, "ansi"):
        # SB3's make_vec_env tries rgb_array first, and no render mode after a TypeError
        raise TypeError(f"render_mode={render_mode!r} has to be None or 'ansi'")
