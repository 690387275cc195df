"""Storage of stacked frames: each frame once, not once for every observation that it is part of."""

from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space

# With fewer planes it is one image, in colours
_MIN_PLANES = 4
# Smaller planes are not worth an index
_MIN_PLANE_SIZE = 1024


@dataclass
class StackedImages:
    """
    The images of a batch, made when they are asked for.

    :param planes: (P, H * W) the frames, or the colours of frames
    :param index: (rows, C) which of them are the channels of each image
    :param shape: Of one image
    """

    planes: th.Tensor
    index: th.Tensor
    shape: tuple[int, ...]

    def __getitem__(self, rows: th.Tensor) -> th.Tensor:
        """
        :param rows: (M,) long
        :return: (M, \\*shape) their images
        """
        return self.planes.index_select(0, self.index.index_select(0, rows).flatten()).view(-1, *self.shape)


def take_rows(values: th.Tensor | StackedImages, rows: th.Tensor) -> th.Tensor:
    """
    :param values: Of the whole rollout
    :param rows: (M,) long
    :return: Those of these rows. Not by ``values[rows]``, which copies single numbers: a twentieth of the speed for images
    """
    return values[rows] if isinstance(values, StackedImages) else values.index_select(0, rows)


class FrameStore:
    """
    Images of rows in the order of time, as an array of them would have them. Where an observation repeats what the last one of
    its episode had, shifted by a frame, only the newest frame is stored.

    :param space: Of one image, channels first
    """

    def __init__(self, space: spaces.Box):
        self.shape, self.dtype = space.shape, space.dtype
        n_planes = space.shape[0]
        self._shift = 3 if n_planes % 3 == 0 else 1  # frames in colours, or grey ones
        self._planes = np.empty((0, int(np.prod(space.shape[1:]))), space.dtype)
        self._n_planes = 0
        self._index = np.empty((0, n_planes), np.int64)
        self._last: dict[int, int] = {}  # the last row of each episode

    @staticmethod
    def is_for(space: spaces.Space) -> TypeGuard[spaces.Box]:
        """
        :param space: Of an observation, or of a part of it
        :return: Whether it can be a stack of frames
        """
        if not (isinstance(space, spaces.Box) and is_image_space(space)):
            return False
        return space.shape[0] >= _MIN_PLANES and space.shape[1] * space.shape[2] >= _MIN_PLANE_SIZE

    def __getitem__(self, rows: int | slice | np.ndarray) -> np.ndarray:
        """
        :param rows: Which
        :return: Their images
        """
        index = self._index[rows]
        return self._planes[index].reshape(*index.shape[:-1], *self.shape)

    def add(self, begin: int, images: np.ndarray, ticket: np.ndarray) -> None:
        """
        :param begin: The first of the new rows
        :param images: (M, \\*shape) of a step of all copies of the environment
        :param ticket: (M,) their episodes
        """
        planes = np.ascontiguousarray(images).reshape(len(images), self.shape[0], -1)
        last, self._last = self._last, {}
        for row, (episode, new) in enumerate(zip(ticket.tolist(), planes, strict=True), start=begin):
            n_known = 0
            if episode in last:
                known = self._index[last[episode], self._shift :]
                if np.array_equal(self._planes[known], new[: len(known)]):
                    n_known = len(known)
                    self._index[row, :n_known] = known
            self._index[row, n_known:] = self._append(new[n_known:])
            self._last[episode] = row

    def _append(self, planes: np.ndarray) -> np.ndarray:
        begin, end = self._n_planes, self._n_planes + len(planes)
        if end > len(self._planes):
            new = np.empty((max(2 * len(self._planes), end, 1024), self._planes.shape[1]), self.dtype)
            new[:begin] = self._planes[:begin]
            self._planes = new
        self._planes[begin:end] = planes
        self._n_planes = end
        return np.arange(begin, end)

    def grow(self, n_rows: int) -> None:
        """
        :param n_rows: How many there is to be room for
        """
        new = np.empty((n_rows, self._index.shape[1]), np.int64)
        new[: len(self._index)] = self._index
        self._index = new

    def keep(self, kept: np.ndarray) -> None:
        """
        Drop all rows but some, which become the first ones.

        :param kept: Which, ascending
        """
        index = self._index[kept]
        used = np.unique(index)
        self._index[: len(kept)] = np.searchsorted(used, index)
        # In parts, as all planes would be in memory twice. None moves to where one is still to be read.
        for begin in range(0, len(used), 1024):
            part = used[begin : begin + 1024]
            self._planes[begin : begin + len(part)] = self._planes[part]
        self._n_planes = len(used)
        self._last = {}

    def images(self, rows: slice, device: th.device) -> StackedImages:
        """
        :param rows: Which
        :param device: Where they are to be
        :return: Their images
        """
        planes = th.as_tensor(self._planes[: self._n_planes], device=device)
        return StackedImages(planes, th.as_tensor(self._index[rows], device=device), self.shape)
