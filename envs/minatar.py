"""
MinAtar's five games as Gymnasium environments (extra ``minatar``): Atari in 10 x 10 cells, as fast as classic control.

Importing this module registers them: ``gym.make("sb3_grpo.envs.minatar:MinAtar/Breakout-v1")``.

Reference: Young and Tian, arXiv:1903.03176.
"""

import copy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

try:
    import minatar.gym
except ImportError as error:
    raise ImportError('MinAtar\'s games need packages that are not installed: pip install "sb3-grpo[minatar]"') from error

# Freeway's own limit. Breakout has none, and does not end if it is played well
MAX_EPISODE_STEPS = 2500
# Side length of a cell in pixels
_CELL = 16


class MinAtarEnv(gym.Env):
    """
    A game of MinAtar. In contrast to ``minatar.gym.BaseEnv``, the seed passed to ``reset`` determines the whole episode, the
    state can be captured, and rendered images have integer values and a visible size.

    :param game: Name of the game
    :param render_mode: ``"rgb_array"``, ``"human"`` or None
    :param display_time: Milliseconds for which ``"human"`` shows a frame
    :param use_minimal_action_set: Whether to leave out actions that have no effect in this game
    :param kwargs: Arguments for ``minatar.Environment``: ``sticky_action_prob``, ``difficulty_ramping``
    """

    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 15}  # noqa: RUF012  as in every environment

    def __init__(
        self,
        game: str,
        render_mode: str | None = None,
        display_time: int = 50,
        use_minimal_action_set: bool = False,
        **kwargs: Any,
    ):
        self.game = minatar.Environment(game, **kwargs)
        # One generator, as after a reset with a seed
        self.game.env.random = self.game.random
        self.render_mode = render_mode
        self.display_time = display_time
        self.actions = self.game.minimal_action_set() if use_minimal_action_set else range(self.game.num_actions())
        self.action_space = spaces.Discrete(len(self.actions))
        self.observation_space = spaces.Box(0, 1, self.game.state_shape(), dtype=bool)
        self._colours: np.ndarray | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """
        Begin an episode.

        :param seed: Seed of everything random in the episode
        :param options: Not used
        :return: The first observation and an empty info
        """
        super().reset(seed=seed)
        if seed is not None:
            self.game.seed(seed % 2**32)
        self.game.reset()
        # Otherwise a sticky action could repeat the last one of the previous episode
        self.game.last_action = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """
        Play a frame.

        :param action: The action
        :return: Observation, reward, terminated (the game is over), False (never truncated) and an empty info
        """
        reward, over = self.game.act(self.actions[action])
        return self._observe(), float(reward), bool(over), False, {}

    def _observe(self) -> np.ndarray:
        if self.render_mode == "human":
            self.render()
        return self.game.state()

    def render(self) -> np.ndarray | None:
        """
        :return: (160, 160, 3) image in MinAtar's colours for ``"rgb_array"``, otherwise None
        """
        if self.render_mode == "human":
            self.game.display_state(self.display_time)
        if self.render_mode != "rgb_array":
            return None
        n_channels = self.game.n_channels
        if self._colours is None:
            # Imported here, as it imports matplotlib and pandas
            from seaborn import color_palette

            palette = np.array([(0, 0, 0), *color_palette("cubehelix", n_channels)])
            self._colours = np.round(255 * palette).astype(np.uint8)
        # If several objects are in the same cell, the last channel is visible
        uppermost = np.amax(self.game.state() * np.arange(1, n_channels + 1), axis=2)
        return self._colours[uppermost].repeat(_CELL, axis=0).repeat(_CELL, axis=1)

    def close(self) -> None:
        """Close the window, if there is one."""
        if self.game.visualized:
            self.game.close_display()

    def get_state(self) -> dict[str, Any]:
        """
        :return: Everything that the rest of the episode depends on, except the random generator, which ``sb3_grpo.starts``
            finds by itself
        """
        game = {name: value for name, value in vars(self.game.env).items() if name != "random"}
        return {"last_action": self.game.last_action, "game": copy.deepcopy(game)}

    def set_state(self, state: dict[str, Any]) -> None:
        """
        :param state: State returned by ``get_state`` of this or another copy
        """
        self.game.last_action = state["last_action"]
        vars(self.game.env).update(copy.deepcopy(state["game"]))


def _register() -> None:
    """Register the games under the ids of the ``minatar`` package, replacing its own environments."""
    if "MinAtar/Breakout-v1" not in gym.registry:
        minatar.gym.register_envs()
    for spec in gym.registry.values():
        if spec.namespace == "MinAtar":
            spec.entry_point = f"{__name__}:{MinAtarEnv.__name__}"
            spec.max_episode_steps = MAX_EPISODE_STEPS


_register()
