"""Training on several ranks of ``torchrun``: what they agree on, and how what they have collected becomes one batch."""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from stable_baselines3.common.callbacks import CallbackList
from stable_baselines3.common.type_aliases import MaybeCallback

from sb3_grpo.checkpoint.callback import TrainingCheckpoint
from sb3_grpo.common.batch import GroupBatch
from sb3_grpo.groups.group import Group
from sb3_grpo.utils.ranks import gather, n_ranks, rank, share_parameters


def begin_training(model: Any) -> None:
    """
    :param model: The algorithm, at the begin of ``learn``: other ranks than the first become silent, and all draw the same
        starts
    :raises ValueError: if the ranks cannot train together
    """
    if n_ranks() == 1:
        return
    if model.get_vec_normalize_env() is not None:
        raise ValueError(
            "VecNormalize has its own statistics in each of several processes: leave it out, and write "
            "policy_kwargs=dict(normalize_observations=True)."
        )
    if rank() > 0:
        model.verbose, model.tensorboard_log, model._custom_logger = 0, None, False
    of_ranks = gather((model.n_envs, model.seed, model._start_rng.bit_generator.state))
    n_envs, seeds, starts = ([*each] for each in zip(*of_ranks, strict=True))
    if len({*n_envs}) > 1:
        raise ValueError(f"Each process needs as many copies as the others, and they have n_envs={n_envs}.")
    if len({*seeds}) > 1:
        raise ValueError(f"All processes need the same seed, and have seed={seeds}: they act differently all the same.")
    if model._collector is None:
        model._start_rng.bit_generator.state = starts[0]


def of_this_rank(callback: MaybeCallback) -> MaybeCallback:
    """
    :param callback: See ``learn``
    :return: The callbacks that this rank calls: only the first calls all of them, but a checkpoint holds the episodes of all
    """
    return callback if rank() == 0 else [each for each in _each(callback) if isinstance(each, TrainingCheckpoint)]


def _each(callback: Any) -> Iterator[Any]:
    """Callbacks one by one, also those in lists of lists."""
    callbacks = callback.callbacks if isinstance(callback, CallbackList) else callback
    for each in callbacks if isinstance(callbacks, list) else ():
        yield from _each(each)
    if not isinstance(callbacks, list):
        yield callbacks


class Collected(NamedTuple):
    """
    What a rank has collected for an update.

    :param batch: The steps to learn from; ``None`` if there are none
    :param groups: Its groups that are complete and can be judged
    :param n_steps: How many steps it has taken
    :param observed: Moments of the observations
    :param reported: Episodes reported by Monitor, and successes
    :param known: What all ranks must have in common: a sum of the parameters, and settings
    """

    batch: GroupBatch | None
    groups: list[Group]
    n_steps: int
    observed: list[Any]
    reported: list[list[Any]]
    known: dict[str, Any]


def _known(model: Any) -> dict[str, Any]:
    parameters = sum(each.detach().double().sum().item() for each in model.policy.parameters() if each.requires_grad)
    settings = {name: value for name, value in model.settings.items() if isinstance(value, int | float | str | None)}
    settings |= {"verbose": None, "tensorboard_log": None}
    return {"the parameters of the policy are": parameters} | {f"{name} is": value for name, value in settings.items()}


class SharedRollout:
    """
    A rollout that several ranks collect.

    :param model: The algorithm, before the first step of the rollout
    """

    def __init__(self, model: Any):
        self.model = model
        self.n_steps = 0  # of this rank
        self._n_before = model.num_timesteps
        if n_ranks() == 1:
            return
        # Without a limit, so that those of this rollout can be told from earlier ones
        model.ep_info_buffer, model.ep_success_buffer = deque(model.ep_info_buffer), deque(model.ep_success_buffer)
        self._n_reported = len(model.ep_info_buffer), len(model.ep_success_buffer)
        if model.num_timesteps == model._num_timesteps_at_start:
            # A callback may have pretrained that of rank 0
            share_parameters(model.policy)

    def join(self, batch: GroupBatch | None, groups: list[Group]) -> tuple[GroupBatch | None, list[Group]]:
        """
        Exchange what the ranks have collected. From here on, all of them have the same.

        :param batch: See :class:`Collected`
        :param groups: See :class:`Collected`
        :return: The batch and the groups of all ranks
        """
        model = self.model
        if n_ranks() == 1:
            return batch, groups
        buffers = model.ep_info_buffer, model.ep_success_buffer
        reported = [[*buffer][n_before:] for buffer, n_before in zip(buffers, self._n_reported, strict=True)]
        # Those that others were thought to take are left out
        n_steps = model.num_timesteps - self._n_before - (n_ranks() - 1) * self.n_steps
        observed = model.policy.observation_norm.recent
        found = gather(Collected(batch, [each.results() for each in groups], n_steps, observed, reported, _known(model)))
        for name, value in found[0].known.items():
            if any(each.known[name] != value for each in found):
                raise ValueError(
                    f"The processes have come apart: {name} not the same in all after {self._n_before} steps. What a callback "
                    "changes in the model, it changes in the first process alone: change it before learn(), or by a schedule."
                )
        model.num_timesteps = self._n_before + sum(each.n_steps for each in found)
        model.policy.observation_norm.join([each.observed for each in found])
        of_all = []
        for place, (buffer, n_before) in enumerate(zip(buffers, self._n_reported, strict=True)):
            new = [reports for each in found for reports in each.reported[place]]
            of_all.append(deque([*buffer][:n_before] + new, maxlen=model._stats_window_size))
        model.ep_info_buffer, model.ep_success_buffer = of_all
        batches = [each.batch for each in found if each.batch is not None]
        return GroupBatch.joined(batches) if batches else None, [group for each in found for group in each.groups]
