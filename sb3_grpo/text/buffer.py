"""Storage of grouped rollouts of text: each text once, not once per token."""

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
    The observations of episodes that are one growing text each: every observation is the beginning of the last one.

    :param texts: (D, L) the last observations of episodes, each once: short answers to the same prompt are often the same
    :param n_tokens: (D,) how long they are, on the host
    :param text: (E,) which of them is that of each episode, on the host
    :param last: (N,) the place of the last token that each step's observation has
    """

    texts: th.Tensor
    n_tokens: np.ndarray
    text: np.ndarray
    last: th.Tensor

    def at(self, minibatch: Minibatch, episode: th.Tensor) -> TokenSteps:
        """
        :param minibatch: Whole episodes of the batch
        :param episode: (N,) the episode of each step of the batch
        :return: Their texts, each once, no longer than the longest of them
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
    :class:`GroupRolloutBuffer` for observations that are one growing text per episode: of each step only the length
    of the text is stored, and of each episode only its longest observation, which contains all the others.
    Log probabilities come from the sampling itself.

    :param observation_space: Observation space
    :param action_space: Action space
    :param device: PyTorch device that the batches live on
    """

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space, device: th.device):
        super().__init__(spaces.Dict(), action_space, device)
        self._columns["n_tokens"] = ((), np.int32)
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self._texts: dict[int, np.ndarray] = {}  # of episodes that have ended
        self._newest = np.empty((0, 0), np.int64)  # (n_envs, L) the last observation of each copy
        self._newest_ticket = np.empty(0, np.int64)

    def state_dict(self) -> dict[str, Any]:
        """
        :return: All rows, and the texts of their episodes
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

        :param obs: (n_envs, L)
        :param actions: (n_envs,)
        :param forwarded: (n_envs,) log probabilities of the actions
        :param rewards: (n_envs,) the environment's own
        :param ticket: (n_envs,) the episode each copy plays, ``NO_EPISODE`` if its steps are not learned from
        :param time: (n_envs,) steps that this episode had before this one
        """
        assert isinstance(obs, np.ndarray)
        n_tokens = token_lengths(obs)
        columns = {"actions": actions, "rewards": rewards, "ticket": ticket, "time": time, "n_tokens": n_tokens}
        self._store({}, columns, forwarded)
        if len(self._newest) == len(obs):
            for idx in np.flatnonzero(self._newest_ticket != ticket):
                self._texts[int(self._newest_ticket[idx])] = self._newest[idx].copy()  # a view would keep them all
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
        Drop all rows but those of some episodes.

        :param tickets: The episodes that are still wanted
        """
        super().keep(tickets)
        wanted = {*tickets} - {NO_EPISODE}
        self._texts = {ticket: text for ticket, text in self._texts.items() if ticket in wanted}
