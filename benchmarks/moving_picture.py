"""
The moving picture of README: LunarLander after training with DAPO's defaults. ``python -m benchmarks.moving_picture``.

Trains for 300,000 steps, and writes the first landing that is worth 200 or more to ``docs/images/lunar_lander.gif``.
"""

from itertools import count
from pathlib import Path

import gymnasium as gym
import numpy as np
from PIL import Image

from sb3_grpo import DAPO

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "lunar_lander.gif"
TIMESTEPS = 300_000
SIZE = (240, 160)
# One of FRAME_SKIP frames is shown, in real time: the environment makes 50 a second
FRAME_SKIP, MILLISECONDS = 4, 80
# Shades that are enough for the sky, the ground and the lander
N_COLORS = 12


def play(model: DAPO, seed: int) -> tuple[float, list[np.ndarray]]:
    """
    :param model: Of LunarLander
    :param seed: Of the episode
    :return: The return and the frames
    """
    env = gym.make("LunarLander-v3", render_mode="rgb_array")
    observation, _ = env.reset(seed=seed)
    total, frames, done = 0.0, [], False
    while not done:
        frames.append(env.render())
        action, _ = model.predict(observation, deterministic=True)
        observation, reward, terminated, truncated, _ = env.step(action)
        total, done = total + float(reward), terminated or truncated
    env.close()
    return total, frames  # type: ignore[return-value]


def main() -> None:
    """Train, play, write."""
    model = DAPO("MlpPolicy", "LunarLander-v3", seed=0, device="cpu").learn(TIMESTEPS, progress_bar=True)
    for seed in count(10_000):
        total, frames = play(model, seed)
        if total >= 200.0:
            break
    pictures = [Image.fromarray(frame).resize(SIZE).quantize(N_COLORS) for frame in frames[::FRAME_SKIP]]
    pictures[0].save(PICTURE, save_all=True, append_images=pictures[1:], duration=MILLISECONDS, loop=0, optimize=True)
    print(f"{PICTURE}: seed {seed}, return {total:.0f}, {len(pictures)} frames, {PICTURE.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
