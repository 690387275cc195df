"""The page's own computations, done with the functions used for training; and the numbers of the worked examples."""

from typing import Any

from sb3_grpo.classroom.lecture.arithmetic import (
    clipping,
    divergence,
    estimators,
    groups,
    live,
    loops,
    notes,
    play,
    trust_region,
    weights,
)
from sb3_grpo.classroom.lecture.golden import Grid

TOPICS = (clipping, groups, weights, divergence, notes, estimators, trust_region, live, play, loops)
# By name of the function in assets/math
GRIDS: dict[str, Grid] = {name: grid for topic in TOPICS for name, grid in topic.GRIDS.items()}
# By name in the chapters
EXAMPLES: dict[str, Any] = {name: value for topic in TOPICS for name, value in topic.EXAMPLES.items()}
