"""The text environment: the agent writes an answer token by token, and a verifier scores it at the end."""

from typing import Any

import gymnasium as gym
import numpy as np

from sb3_grpo.envs.text.episodes import TextEpisodes
from sb3_grpo.envs.text.rules import TextEpisodeRules


class VerifierTextEnv(TextEpisodes, gym.Env):
    """
    The agent reads a prompt and writes one token per step; a verifier scores the finished answer.

    An observation is the whole text so far (prompt, answer and replies), padded on the right with ``PAD``: tokens are only
    ever appended. The action is the next token. The end-of-text token passes the answer to the verifier (or to the task,
    which may reply; then the episode goes on). After ``max_answer_tokens`` tokens, the episode is truncated (terminated with
    ``truncate=False``), and an unfinished answer is wrong. Rewards before the last one are those of replies.

    ``reset(options={"item": k})`` begins with item k of the task.

    :param task: The task, see :func:`make_task`. Or :class:`TextEpisodeRules`, which several environments can share
    :param render_mode: ``"ansi"``, with which ``render`` returns the conversation, or None
    :param settings: Parameters of :class:`TextEpisodeRules`
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012

    def __init__(self, task: Any = "arithmetic", *, render_mode: str | None = None, **settings: Any):
        if render_mode not in (None, "ansi"):
            # SB3's make_vec_env tries rgb_array first, and no render mode after a TypeError
            raise TypeError(f"render_mode={render_mode!r} has to be None or 'ansi'")
        super().__init__(task if isinstance(task, TextEpisodeRules) else TextEpisodeRules(task, **settings), n_copies=1)
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """
        :param seed: Seed of the generator that draws the item
        :param options: ``{"item": k}`` chooses item k
        :return: The prompt as observation, and an info with its text and the index of the item
        """
        super().reset(seed=seed)
        info = self._begin(0, self.rules.choose_item(options, self.np_random))
        self._in_progress = True
        return self._tokens[0].copy(), info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """
        :param action: The next token
        :return: Observation, reward, terminated, truncated, and an info that has the verdict if the episode has ended
        """
        rewards, endings = self._write(np.asarray([action]))
        truncated, info = endings.get(0, (False, {}))
        return self._tokens[0].copy(), float(rewards[0]), bool(endings) and not truncated, truncated, info

    def render(self) -> str | None:
        """
        :return: The conversation in this episode
        """
        if self.render_mode is None:
            return None
        state = self.get_state()
        said = [self.rules.prompts.text(state["prompt"]), *state["messages"]]
        if len(said) % 2:
            said.append(self._answer(0))
        return "\n".join(f"{'Agent' if turn % 2 else 'Task'}: {text}" for turn, text in enumerate(said))

    def get_state(self) -> dict[str, Any]:
        """
        :return: The state of the episode, for ``set_state`` of this or another environment with the same task
        """
        return self._get_episode(0)

    def set_state(self, state: dict[str, Any]) -> None:
        """
        :param state: State returned by ``get_state``
        """
        self._set_episode(0, state)
        self._in_progress = not state["ended"]
