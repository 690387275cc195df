"""Numbers as text."""

import math
from collections.abc import Sequence

from sb3_grpo.classroom.compare.statistics import Interval


def number(value: float, like: Sequence[float] = ()) -> str:
    """
    :param value: A number
    :param like: Other numbers shown next to it
    :return: The number with as many digits as are useful for the largest of them
    """
    size = max(abs(x) for x in (value, *like))
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 0.1 or size == 0 else 1 - math.floor(math.log10(size))
    # Nonzero numbers must not look like zero: readers need to see whether an interval ends below or at it
    while digits < 4 and any(abs(x) > 1e-6 * size and not round(x, digits) for x in like):
        digits += 1
    text = f"{value:,.{digits}f}"
    if not like and "." in text:
        text = text.rstrip("0").rstrip(".")
    return text if text.strip("-0.") else text.removeprefix("-")


def interval_text(interval: Interval, least: float = 0.0) -> str:
    """
    :param interval: An estimate with its interval
    :param least: Show digits as for a number of at least this size
    :return: "value (low to high)", the value alone if there are too few seeds
    """
    if not interval.known:
        return number(interval.value, (least,) if least else ())
    value, low, high = (number(x, (*interval, least)) for x in interval)
    return f"{value} ({low} to {high})"


def steps_text(steps: int) -> str:
    """
    :param steps: Number of steps
    :return: The same in thousands or millions
    """
    return f"{steps // 1000}k" if steps < 1_000_000 else f"{steps / 1_000_000:g}M"
