"""Values of the package's functions on grids, which the page compares with its own computations."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

DIGITS = 10
# A function from numbers to numbers, and the values of each of its arguments
Grid = tuple[Callable[..., Sequence[float]], Sequence[Sequence[float]]]


def golden_values(grids: Mapping[str, Grid]) -> dict[str, Any]:
    """
    :param grids: Grids by name of the page's function
    :return: For the script, by the same names: the axes, and all values in the order of ``itertools.product``
    """
    return {name: evaluate(function, axes) for name, (function, axes) in grids.items()}


def evaluate(function: Callable[..., Sequence[float]], axes: Sequence[Sequence[float]]) -> dict[str, Any]:
    """
    :param function: Function with one argument per axis
    :param axes: Values of each argument
    :return: The axes, and all values in the order of ``itertools.product``
    """
    values = [[float(f"{value:.{DIGITS}g}") for value in function(*arguments)] for arguments in product(*axes)]
    return {"axes": [list(axis) for axis in axes], "values": values}


def axis(low: float, high: float, n: int) -> list[float]:
    """
    :param low: Lowest value
    :param high: Highest value
    :param n: Number of values
    :return: Evenly spaced values
    """
    return [float(f"{value:.6g}") for value in np.linspace(low, high, n)]
