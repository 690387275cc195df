"""Buffer for grouped rollouts of text, which stores each text once instead of once per token."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces

from sb3_grpo.common.buffers import GroupRolloutBuffer, Minibatch, PackedObservations
from sb3_grpo.groups.group import Episode
from sb3_grpo.text.tokens import TokenSteps, distinct_rows, token_lengths
from sb3_grpo.utils.devices import to_device


@dataclass
class EpisodeTexts(PackedObservations):
    """
    The observations of episodes that each are one growing text: every observation is a prefix of the last one.

    :param texts: (D, L) the distinct last observations of the episodes, as short answers to the same prompt are often equal
    :param n_tokens: (D,) their lengths, on the host
    :param text: (E,) index of each episode's text, on the host
    :param last: (N,) position of the last token in each step's observation
    """

    texts: th.Tensor
    n_tokens: np.ndarray
    text: np.ndarray
    last: th.Tensor

    def at(self, minibatch: Minibatch, episode: th.Tensor) -> TokenSteps:
        """
        :param minibatch: Minibatch of whole episodes
        :param episode: (N,) the episode of each step of the batch
        :return: The distinct texts of the minibatch, no longer than the longest of them
        """
        assert minibatch.episodes is not None
        text_of_episode = self.text.copy()
        distinct, place = np.unique(text_of_episode[minibatch.episodes], return_inverse=True)
        text_of_episode[minibatch.episodes] = place
        longest = int(self.n_tokens[distinct].max())
        return TokenSteps(
            texts=self.texts[:, :longest][to_device(distinct, episode.device)],
            text=to_device(text_of_episode, episode.device)[episode[minibatch.steps]],
            last=self.last[minibatch.steps],
        )


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

    def note_ends(self, episodes: list[Episode], obs: Any) -> None:
        """
        Keep the texts of episodes that have ended.

        :param episodes: The episodes
        :param obs: (n_envs, L) the observations before the last step
        """
        for episode in episodes:
            episode.text = obs[episode.env].copy()  # a view would keep the whole array

    def _observations(self, episodes: list[Episode], rows: np.ndarray) -> EpisodeTexts:
        every = np.stack([episode.text for episode in episodes])
        first, text = distinct_rows(every)
        texts, n_tokens = every[first], token_lengths(every[first])
        lengths: Any = self._obs[""]
        return EpisodeTexts(
            texts=self._tensor(texts[:, : n_tokens.max()]),
            n_tokens=n_tokens,
            text=text,
            last=self._tensor(self._flat(lengths)[rows]) - 1,
        )
