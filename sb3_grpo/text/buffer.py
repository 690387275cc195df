"""Buffer for grouped rollouts of text, which stores each text once instead of once per token."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces

from sb3_grpo.common.buffers import GroupRolloutBuffer, Minibatch, PackedObservations
from sb3_grpo.groups.group import Episode
from sb3_grpo.groups.queue import NO_EPISODE
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
    """

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space, device: th.device):
        super().__init__(spaces.Dict(), action_space, device)
        self._columns["n_tokens"] = ((), np.int32)
        self.reset()

    def reset(self) -> None:
        """Empty the buffer."""
        super().reset()
        self._texts: dict[int, np.ndarray] = {}  # of finished episodes
        self._newest = np.empty((0, 0), np.int64)  # (n_envs, L) the last observation of each copy
        self._newest_ticket = np.empty(0, np.int64)

    def state_dict(self) -> dict[str, Any]:
        """
        :return: All steps, and the texts of their episodes
        """
        return {**super().state_dict(), **{name: getattr(self, name) for name in ("_texts", "_newest", "_newest_ticket")}}

    def add(
        self,
        obs: np.ndarray | dict[str, np.ndarray],
        actions: np.ndarray,
        forwarded: th.Tensor,
        rewards: np.ndarray,
        ticket: np.ndarray,
        time: np.ndarray,
    ) -> None:
        """
        Add one step of all environment copies.

        :param obs: (n_envs, L) observations
        :param actions: (n_envs,) actions
        :param forwarded: (n_envs,) log probabilities of the actions
        :param rewards: (n_envs,) the environment's own rewards
        :param ticket: (n_envs,) the episode that each copy plays, ``NO_EPISODE`` if its steps are not learned from
        :param time: (n_envs,) number of earlier steps in this episode
        """
        assert isinstance(obs, np.ndarray)
        n_tokens = token_lengths(obs)
        columns = {"actions": actions, "rewards": rewards, "ticket": ticket, "time": time, "n_tokens": n_tokens}
        self._store({}, columns, forwarded)
        if len(self._newest) == len(obs):
            for idx in np.flatnonzero(self._newest_ticket != ticket):
                self._texts[int(self._newest_ticket[idx])] = self._newest[idx].copy()  # a view would keep the whole array
        self._newest, self._newest_ticket = obs, ticket.copy()

    def _batch_observations(self, episodes: list[Episode], rows: np.ndarray) -> EpisodeTexts:
        newest = {int(ticket): text for ticket, text in zip(self._newest_ticket, self._newest, strict=True)}
        texts = np.stack([self._texts[e.ticket] if e.ticket in self._texts else newest[e.ticket] for e in episodes])
        longest = int(token_lengths(texts).max())
        first, text = distinct_rows(texts[:, :longest])
        distinct = texts[first, :longest]
        return EpisodeTexts(
            texts=th.as_tensor(distinct, device=self.device),
            n_tokens=token_lengths(distinct),
            text=text,
            last=self._tensor(self._data["n_tokens"], rows).long() - 1,
        )

    def keep(self, tickets: list[int]) -> None:
        """
        Drop the steps of all other episodes.

        :param tickets: Tickets of the episodes to keep
        """
        super().keep(tickets)
        wanted = {*tickets} - {NO_EPISODE}
        self._texts = {ticket: text for ticket, text in self._texts.items() if ticket in wanted}
