"""Storage of stacked frames: each frame is stored once, not once for every observation that contains it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space

# Fewer planes are a single image, in colour
_MIN_PLANES = 4
# Smaller planes are not worth indexing
_MIN_PLANE_SIZE = 1024


@dataclass
class StackedImages:
    """
    The images of a batch, assembled on access.

    :param planes: (P, H * W) the frames, or the colour channels of frames
    :param index: (rows, C) indices of the planes that are the channels of each image
    :param shape: Shape of one image
    """

    planes: th.Tensor
    index: th.Tensor
    shape: tuple[int, ...]

    def index_select(self, dim: int, rows: th.Tensor) -> th.Tensor:
        """
        :param dim: 0, as for a tensor
        :param rows: (M,) long, row indices
        :return: (M, \\*shape) their images
        """
        return self.planes.index_select(0, self.index.index_select(dim, rows).flatten()).view(-1, *self.shape)

    @staticmethod
    def joined(parts: Sequence["StackedImages"]) -> "StackedImages":
        """
        :param parts: Images of the same shape
        :return: All of them
        """
        begins = np.cumsum([0, *(len(each.planes) for each in parts[:-1])]).tolist()
        index = th.cat([each.index + begin for each, begin in zip(parts, begins, strict=True)])
        return StackedImages(th.cat([each.planes for each in parts]), index, parts[0].shape)


class FrameStore:
    """
    Images of rows and environment copies. If an observation repeats the previous one of its copy, shifted by a frame, only the
    newest frame is stored.

    :param space: Space of one image, channels first
    :param n_envs: Number of environment copies
    """

    def __init__(self, space: spaces.Box, n_envs: int):
        self.shape, self.dtype = space.shape, space.dtype
        n_planes = space.shape[0]
        self._shift = 3 if n_planes % 3 == 0 else 1  # colour or grayscale frames
        self._planes = np.empty((0, int(np.prod(space.shape[1:]))), space.dtype)
        self._n_planes = 0
        self._index = np.zeros((0, n_envs, n_planes), np.int64)

    @staticmethod
    def is_for(space: spaces.Space) -> TypeGuard[spaces.Box]:
        """
        :param space: Space of an observation, or of an entry of it
        :return: Whether it can be a stack of frames
        """
        if not (isinstance(space, spaces.Box) and is_image_space(space)):
            return False
        return space.shape[0] >= _MIN_PLANES and space.shape[1] * space.shape[2] >= _MIN_PLANE_SIZE

    def add(self, row: int, images: np.ndarray, wanted: np.ndarray) -> None:
        """
        :param row: Index of a row; all earlier rows are filled
        :param images: (n_envs, \\*shape)
        :param wanted: (n_envs,) the copies whose images will be read. Those of the others are not stored
        """
        planes = np.ascontiguousarray(images).reshape(len(images), self.shape[0], -1)
        for idx in np.flatnonzero(wanted).tolist():
            n_known, new = 0, planes[idx]
            if row > 0 and self._n_planes:
                known = self._index[row - 1, idx, self._shift :]
                if np.array_equal(self._planes[known], new[: len(known)]):
                    n_known = len(known)
                    self._index[row, idx, :n_known] = known
            self._index[row, idx, n_known:] = self._append(new[n_known:])

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
        :param n_rows: Number of rows to make room for
        """
        new = np.zeros((n_rows, *self._index.shape[1:]), np.int64)
        n_kept = min(n_rows, len(self._index))
        new[:n_kept] = self._index[:n_kept]
        self._index = new

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_planes": self._planes[: self._n_planes]}

    def keep(self, first: int, end: int) -> None:
        """
        Drop all rows except some of the latest, which become the first rows.

        :param first: The first row to keep
        :param end: Behind the last row
        """
        used, index = np.unique(self._index[first:end], return_inverse=True)
        self._index[: end - first] = index.reshape(-1, *self._index.shape[1:])
        self._index[end - first :] = 0
        # In parts, as all planes would be in memory twice. No plane overwrites one that is still to be read.
        for begin in range(0, len(used), 1024):
            part = used[begin : begin + 1024]
            self._planes[begin : begin + len(part)] = self._planes[part]
        self._n_planes = len(used)

    def images(self, n_rows: int, device: th.device) -> StackedImages:
        """
        :param n_rows: Number of rows that are filled
        :param device: Device to put the images on
        :return: Their images, one after the other
        """
        planes = th.as_tensor(self._planes[: self._n_planes], device=device)
        index = self._index[:n_rows].reshape(-1, self._index.shape[2])
        return StackedImages(planes, th.as_tensor(index, device=device), self.shape)
