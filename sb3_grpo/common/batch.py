"""The batch that one update learns from, and its minibatches."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch as th

from sb3_grpo.common.frames import StackedImages


class Minibatch(NamedTuple):
    """
    A part of the batch.

    :param steps: (M,) indices of its steps, in 0..N-1
    :param episodes: The episodes that they belong to, on the host; only if whole episodes stay together
    :param n_minibatches: Number of minibatches in the batch
    :param n_shared: Number of steps of the minibatch of which these are a share; ``None``: they are all of it
    """

    steps: th.Tensor
    episodes: np.ndarray | None
    n_minibatches: int
    n_shared: float | None = None

    def mean(self, values: th.Tensor) -> th.Tensor:
        """
        :param values: (M,)
        :return: Their mean; of a share, what it adds to the mean of the whole minibatch
        """
        return values.mean() if self.n_shared is None else values.sum() / self.n_shared

    def share(self, rank: int, n_ranks: int, episode: th.Tensor) -> "Minibatch":
        """
        :param rank: Number of a share, from 0
        :param n_ranks: Number of shares
        :param episode: (N,) the episode of each step of the batch
        :return: The share; if it is empty, steps that do not count
        """
        steps, episodes = self.steps[rank::n_ranks], None
        if self.episodes is not None:
            # Neighbours, which may begin with the same prompt
            episodes = np.array_split(self.episodes, n_ranks)[rank]
            steps = self.steps[th.isin(episode[self.steps], th.as_tensor(episodes, device=self.steps.device))]
        if len(steps):
            return Minibatch(steps, episodes, self.n_minibatches, len(self.steps))
        # A loss without steps is not defined
        return self._replace(n_minibatches=0, n_shared=math.inf)


class PackedObservations:
    """Observations stored in a policy's own format instead of one row per step, see ``rollout_buffer_class``."""

    def at(self, minibatch: Minibatch, episode: th.Tensor) -> Any:
        """
        :param minibatch: Part of the batch
        :param episode: (N,) the episode of each step of the batch
        :return: The observations of its steps, as the policy takes them
        """
        raise NotImplementedError

    def begin_long(self, lengths: th.Tensor) -> bool:
        """
        :param lengths: (B, G) steps per episode
        :return: Whether what episodes begin with is long, so that those with the same beginning should be read together
        """
        return False


@dataclass(frozen=True)
class RecurrentSteps:
    """
    What a policy with a memory acts on: M steps of S sequences, and what it remembers of the time before them.

    :param observations: (M, \\*obs_shape) or a dict of these
    :param states: (S, \\*state_shape) state of the memory before the first step of each sequence
    :param sequence: (M,) the sequence 0..S-1 of each step; ``None``: each step is a sequence of its own
    :param time: (M,) index of each step in its sequence; ``None`` together with ``sequence``
    """

    observations: Any
    states: th.Tensor
    sequence: th.Tensor | None = None
    time: th.Tensor | None = None

    @staticmethod
    def joined(parts: Sequence["RecurrentSteps"]) -> "RecurrentSteps":
        """
        :param parts: Steps that are sequences of their own
        :return: All of them
        """
        return RecurrentSteps(joined([each.observations for each in parts]), joined([each.states for each in parts]))


def joined(parts: Sequence[Any]) -> Any:
    """
    :param parts: Tensors of the same kind; or dicts, or objects with a method ``joined``, of them
    :return: One after the other
    """
    first = parts[0]
    if isinstance(first, th.Tensor):
        return th.cat([*parts])
    if isinstance(first, dict):
        return {key: joined([each[key] for each in parts]) for key in first}
    return first.joined(parts)


def observations_in(observations: Any, rows: th.Tensor) -> Any:
    """
    :param observations: (n, \\*obs_shape) tensor or :class:`StackedImages`, or a dict of these
    :param rows: (M,) long
    :return: (M, \\*obs_shape) or a dict of these, the observations in these rows
    """
    # Not values[rows], which copies single numbers: a twentieth of the speed for images
    if isinstance(observations, dict):
        return {key: values.index_select(0, rows) for key, values in observations.items()}
    return observations.index_select(0, rows)


@dataclass(frozen=True)
class GroupBatch:
    """
    The groups of one update, until the next rollout begins: on a CPU, it shares memory with the rollout buffer.

    B groups of G members make E = B * G episodes with N steps in total. If an update does not wait for episodes to end, they
    consist of the steps since the last update. T is the length of the longest. Steps are ordered by (group, member, time).

    :param observations: (rows, \\*obs_shape) or a dict of these, for all steps of all copies; index with ``rows``.
        Images of stacked frames are :class:`StackedImages`. Or in the policy's own format
    :param actions: (rows, \\*action_shape), index with ``rows``
    :param old_log_prob: (rows,) log probability under the policy that chose the action, index with ``rows``
    :param rows: (N,) row of each step in the rollout
    :param episode: (N,) the episode 0..E-1 of each step
    :param time: (N,) index of the step in this part of its episode
    :param rewards: (B, G, T) the environment's own, zero-padded, in double precision: equal outcomes must compare equal
        regardless of the order of their rewards
    :param mask: (B, G, T) True where a step exists
    :param lengths: (B, G) steps per episode
    :param outcomes: (B, G) undiscounted sums of the environment's own rewards, so far or over the whole episode
    :param truncated: (B, G) True if a time limit truncated the episode
    :param elapsed: (B, G) steps that the time limit had counted before the first step
    :param unfinished: (M,) long, indices (0..E-1) of the episodes that continue after their last step
    :param next_observations: (M, \\*obs_shape) or a dict of these, the observations from which they continue; ``None`` if M
        is 0. Or in the policy's own format, and :class:`RecurrentSteps` if it has a memory
    :param action_masks: (rows, A) the actions that were allowed, index with ``rows``; ``None`` if there are no masks
    :param states: (rows, \\*state_shape) what the policy remembered before each step; ``None`` if it has no memory
    :param normalized_outcomes: (B, G) outcomes with each part of the last reward normalised, see :func:`normalized_outcomes`;
        NaN where there are no parts
    """

    observations: th.Tensor | StackedImages | dict[str, th.Tensor | StackedImages] | PackedObservations
    actions: th.Tensor
    old_log_prob: th.Tensor
    rows: th.Tensor
    episode: th.Tensor
    time: th.Tensor
    rewards: th.Tensor
    mask: th.Tensor
    lengths: th.Tensor
    outcomes: th.Tensor
    truncated: th.Tensor
    elapsed: th.Tensor
    unfinished: th.Tensor
    next_observations: Any
    action_masks: th.Tensor | None = None
    states: th.Tensor | None = None
    normalized_outcomes: th.Tensor | None = None

    @property
    def has_sequences(self) -> bool:
        """Whether the policy reads the steps of an episode together."""
        return self.states is not None or isinstance(self.observations, PackedObservations)

    @property
    def n_together(self) -> int:
        """How many episodes stay next to each other in minibatches: those of a group, if prompts are long."""
        together = isinstance(self.observations, PackedObservations) and self.observations.begin_long(self.lengths)
        return self.lengths.shape[1] if together else 1

    @staticmethod
    def joined(batches: Sequence["GroupBatch"]) -> "GroupBatch":
        """
        :param batches: Batches of different groups, which other copies have played
        :return: The batch of all of them, in this order
        """
        longest = max(each.mask.shape[-1] for each in batches)
        n_rows = n_episodes = 0
        parts: list[dict[str, Any]] = []
        for each in batches:
            missing = 0, longest - each.mask.shape[-1]
            moved = {
                "rows": each.rows + n_rows,
                "episode": each.episode + n_episodes,
                "unfinished": each.unfinished + n_episodes,
                "rewards": th.nn.functional.pad(each.rewards, missing),
                "mask": th.nn.functional.pad(each.mask, missing),
            }
            parts.append(vars(each) | moved)
            n_rows, n_episodes = n_rows + len(each.actions), n_episodes + each.lengths.numel()
        found = {name: [part[name] for part in parts if part[name] is not None] for name in parts[0]}
        of_all: dict[str, Any] = {name: joined(values) if values else None for name, values in found.items()}
        return GroupBatch(**of_all)

    def flatten(self, padded: th.Tensor) -> th.Tensor:
        """
        :param padded: (B, G, T)
        :return: (N,) the entries of existing steps, in the order of ``rows``
        """
        return padded.flatten(0, 1)[self.episode, self.time]

    def pad(self, flat: th.Tensor) -> th.Tensor:
        """
        :param flat: (N,) in the order of ``rows``
        :return: (B, G, T) the same values, with zeros where there is no step
        """
        padded = flat.new_zeros(self.mask.shape)
        padded[self.mask] = flat
        return padded

    def inputs_at(self, minibatch: Minibatch) -> tuple[Any, ...]:
        """
        :param minibatch: Part of the batch
        :return: What ``get_distribution`` takes for its steps: the observations and, if there are any, the action masks
        """
        observations = self.observations_at(minibatch)
        return (observations,) if self.action_masks is None else (observations, self.action_masks[self.rows[minibatch.steps]])

    def observations_at(self, minibatch: Minibatch) -> Any:
        """
        :param minibatch: Part of the batch
        :return: The observations of its steps, as the policy takes them
        """
        if isinstance(self.observations, PackedObservations):
            return self.observations.at(minibatch, self.episode)
        steps = minibatch.steps
        observations = observations_in(self.observations, self.rows[steps])
        if self.states is None:
            return observations
        if minibatch.episodes is None:
            return RecurrentSteps(observations, self.states[self.rows[steps]])
        # Sequences of consecutive steps, through which gradients flow
        begins = th.ones_like(steps, dtype=th.bool)
        begins[1:] = (self.episode[steps].diff() != 0) | (self.time[steps].diff() != 1)
        first, sequence = begins.nonzero().squeeze(1), begins.cumsum(0) - 1
        time = th.arange(len(steps), device=steps.device) - first[sequence]
        return RecurrentSteps(observations, self.states[self.rows[steps[first]]], sequence, time)


def minibatches(
    episode: th.Tensor, kept: th.Tensor, batch_size: int | None, whole_episodes: bool = False, n_together: int = 1
) -> Iterator[Minibatch]:
    """
    Split the steps of a batch randomly into minibatches of nearly equal size (for whole episodes, as equal as possible).

    :param episode: (N,) the episode of each step
    :param kept: (N,) long, indices of the steps that take part in the loss
    :param batch_size: Maximum number of steps in a minibatch (exceeded only by a single longer episode), ``None`` for a
        single minibatch
    :param whole_episodes: Keep the steps of an episode together, for ratios per episode and for texts
    :param n_together: Number of neighbouring whole episodes that stay next to each other
    :return: The minibatches
    """
    batch_size = len(kept) if batch_size is None else batch_size
    if not whole_episodes:
        n_minibatches = -(-len(kept) // batch_size)
        for steps in th.tensor_split(kept[th.randperm(len(kept), device=kept.device)], n_minibatches):
            yield Minibatch(steps, None, n_minibatches)
        return
    # Steps are ordered by episode: each episode is a contiguous run. One transfer per epoch, none per minibatch.
    lengths = th.bincount(episode[kept]).tolist()
    runs = th.split(kept, lengths)
    permutation = th.randperm(len(lengths))
    if n_together > 1:
        runs_of_episodes = th.randperm(-(-len(lengths) // n_together))
        permutation = permutation[runs_of_episodes[permutation // n_together].argsort(stable=True)]
    order = [index for index in permutation.tolist() if lengths[index] > 0]
    n_episodes = _n_episodes(np.array([lengths[index] for index in order]), batch_size)
    for episodes in th.tensor(order).split(n_episodes):
        steps = th.cat([runs[index] for index in episodes.tolist()])
        yield Minibatch(steps, episodes.numpy(), len(n_episodes))


def _n_episodes(lengths: np.ndarray, batch_size: int) -> list[int]:
    """
    :param lengths: (E,) number of steps of each episode, in order
    :param batch_size: Maximum number of steps in a minibatch with more than one episode
    :return: Number of episodes in each minibatch
    """
    ends = lengths.cumsum()
    total = int(ends[-1])
    n_minibatches = -(-total // batch_size)
    while True:
        # Divide the steps into equal parts and assign each episode to the part that contains its middle
        part = (2 * ends - lengths) * n_minibatches // (2 * total)
        counts, sizes = np.bincount(part), np.bincount(part, weights=lengths)
        if ((sizes <= batch_size) | (counts <= 1)).all():
            return counts[counts > 0].tolist()
        n_minibatches += 1
