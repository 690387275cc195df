"""Buffer for grouped rollouts of text, which stores each text once instead of once per token."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces

from sb3_grpo.common.batch import Minibatch, PackedObservations
from sb3_grpo.common.buffers import GroupRolloutBuffer
from sb3_grpo.groups.group import Episode
from sb3_grpo.text.tokens import token_lengths
from sb3_grpo.text.tree import TokenSteps
from sb3_grpo.utils.devices import to_device

# Tokens of a prompt, on average, from which on the answers of a group stay next to each other in minibatches
LONG_PROMPT = 128


@dataclass
class EpisodeTexts(PackedObservations):
    """
    The observations of episodes that each are one growing text: every observation is a prefix of the last one.

    :param texts: (E, L) the last observation of each episode, on the host
    :param n_tokens: (E,) their lengths, on the host
    :param last: (N,) position of the last token in each step's observation
    """

    texts: np.ndarray
    n_tokens: np.ndarray
    last: th.Tensor

    def at(self, minibatch: Minibatch, episode: th.Tensor) -> TokenSteps:
        """
        :param minibatch: Minibatch of whole episodes
        :param episode: (N,) the episode of each step of the batch
        :return: The texts of the minibatch, no longer than the longest of them
        """
        assert minibatch.episodes is not None
        longest = int(self.n_tokens[minibatch.episodes].max())
        place = np.zeros(len(self.n_tokens), np.int64)
        place[minibatch.episodes] = np.arange(len(minibatch.episodes))
        place_of, steps = to_device(place, episode.device), minibatch.steps
        return TokenSteps(self.texts[minibatch.episodes, :longest], place_of[episode[steps]], self.last[steps])

    def begin_long(self, lengths: th.Tensor) -> bool:
        """
        :param lengths: (B, G) steps per episode
        :return: Whether prompts are long. Shorter ones are mixed in minibatches: a single group is a poor estimate
        """
        n_steps = lengths.flatten()
        first = (n_steps.cumsum(0) - n_steps)[n_steps > 0]
        return bool(self.last[first].double().mean() + 1 > LONG_PROMPT)

    @staticmethod
    def joined(parts: Sequence["EpisodeTexts"]) -> "EpisodeTexts":
        """
        :param parts: Texts of different episodes
        :return: All of them
        """
        texts, n_tokens = (np.concatenate(each) for each in zip(*((each.texts, each.n_tokens) for each in parts), strict=True))
        return EpisodeTexts(texts, n_tokens, th.cat([each.last for each in parts]))


class TokenRolloutBuffer(GroupRolloutBuffer):
    """
    :class:`GroupRolloutBuffer` for observations that are one growing text per episode: it stores only the length of the
    text for each step, and only the longest observation, which contains all the others, for each episode.
    Log probabilities are those computed when sampling.

    :param observation_space: Observation space
    :param action_space: Action space
    :param device: PyTorch device of the batches
    :param n_envs: Number of environment copies
    """

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space, device: th.device, n_envs: int = 1):
        super().__init__(spaces.Discrete(2**31 - 1), action_space, device, n_envs)

    def add(self, obs: Any, *args: Any, **kwargs: Any) -> None:
        """See :meth:`GroupRolloutBuffer.add`. Of an observation, the number of tokens is stored."""
        super().add(token_lengths(obs), *args, **kwargs)

    def on_episode_ends(self, indices: list[int], episodes: list[Episode], obs: Any) -> None:
        """
        Keep the texts of episodes that have ended.

        :param indices: Environment copies whose episodes have ended
        :param episodes: Those of these episodes that belong to groups
        :param obs: (n_envs, L) the observations before the last step
        """
        for episode in episodes:
            episode.text = obs[episode.env].copy()  # a view would keep the whole array

    def _observations(self, episodes: list[Episode], rows: np.ndarray) -> EpisodeTexts:
        texts = np.stack([episode.text for episode in episodes])
        n_tokens = token_lengths(texts)
        lengths: Any = self._obs[""]
        return EpisodeTexts(texts, n_tokens, self._tensor(self._flat(lengths)[rows]) - 1)
