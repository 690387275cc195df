"""Values of the package's functions on grids, which the page compares with its own arithmetic."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

DIGITS = 10
# A function of numbers that returns numbers, and the values that each of its arguments takes
Grid = tuple[Callable[..., Sequence[float]], Sequence[Sequence[float]]]


def golden_values(grids: Mapping[str, Grid]) -> dict[str, Any]:
    """
    :param grids: By the name of the page's function
    :return: By the same name, for the script: the axes, and all values in the order of ``itertools.product``
    """
    return {name: evaluate(function, axes) for name, (function, axes) in grids.items()}


def evaluate(function: Callable[..., Sequence[float]], axes: Sequence[Sequence[float]]) -> dict[str, Any]:
    """
    :param function: Of one argument of each axis
    :param axes: Arguments
    :return: The axes, and all values in the order of ``itertools.product``
    """
    values = [[float(f"{value:.{DIGITS}g}") for value in function(*arguments)] for arguments in product(*axes)]
    return {"axes": [list(axis) for axis in axes], "values": values}


def axis(low: float, high: float, n: int) -> list[float]:
    """
    :param low: Least value
    :param high: Greatest value
    :param n: How many
    :return: Values with equal distances
    """
    return [float(f"{value:.6g}") for value in np.linspace(low, high, n)]
