"""
The README's animation: LunarLander before and after training with DAPO. ``python -m benchmarks.moving_picture``.

Trains for 300,000 steps, and writes the first landing with a return of 200 or more to ``docs/images/lunar_lander.webp``.
"""

import functools
from itertools import count
from pathlib import Path

from sb3_grpo import DAPO
from sb3_grpo.classroom.clips import format_return, record, side_by_side
from sb3_grpo.starts.atari import make_env_of

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "lunar_lander.webp"
ENV = "LunarLander-v3"
TIMESTEPS = 300_000


def main() -> None:
    """Train, play, write."""
    model = DAPO("MlpPolicy", ENV, n_groups=4, batch_size=512, seed=0, device="cpu").learn(TIMESTEPS, progress_bar=True)
    for seed in count(10_000):
        played = record(model, functools.partial(make_env_of, ENV, 1, None), seed)
        total = played[1][-1].total
        if total >= 200.0:
            break
    PICTURE.write_bytes(side_by_side(played, ("untrained", "DAPO")))
    print(f"{PICTURE}: seed {seed}, return {format_return(total)}, {PICTURE.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
