"""The environments whose states the documentation calls exact, with wrappers around them."""

import gymnasium as gym
import pytest
from gymnasium.envs.registration import find_highest_version
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.monitor import Monitor

from sb3_grpo.starts.start_queue import StartQueue

MUJOCO_NAMES = (
    "Ant HalfCheetah Hopper Humanoid HumanoidStandup InvertedDoublePendulum InvertedPendulum Pusher Reacher Swimmer Walker2d"
)


def newest(name: str) -> str:
    """Older Gymnasium has older versions of some."""
    return f"{name}-v{find_highest_version(None, name)}"


SLIPPERY = "CliffWalkingSlippery-v1"
PLAIN = [
    "CartPole-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "FrozenLake-v1",
    newest("Taxi"),
    "Blackjack-v1",
    newest("CliffWalking"),
    pytest.param(SLIPPERY, marks=pytest.mark.skipif(SLIPPERY not in gym.registry, reason="newer than Gymnasium")),
]
MUJOCO = [f"{name}-v5" for name in MUJOCO_NAMES.split()]
BOX2D = ["LunarLander-v3", "LunarLander continuous", "BipedalWalker-v3", "BipedalWalkerHardcore-v3", "CarRacing-v3"]
STICKY_PONG = "ALE/Pong-v5"
BREAKOUT_LIFE = "BreakoutNoFrameskip-v4 life"
ATARI = [STICKY_PONG, "PongNoFrameskip-v4", BREAKOUT_LIFE, "BreakoutNoFrameskip-v4"]
MINATAR = [f"MinAtar/{game}-v1" for game in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")]
ALL = PLAIN + MUJOCO + BOX2D + ATARI + MINATAR

PACKAGES = dict.fromkeys(MUJOCO, "mujoco") | dict.fromkeys(BOX2D, "Box2D") | dict.fromkeys(ATARI, "ale_py")
PACKAGES |= dict.fromkeys(MINATAR, "minatar")


def make(name: str) -> StartQueue:
    package = PACKAGES.get(name)
    if package is not None:
        module = pytest.importorskip(package)
        if package == "ale_py":
            gym.register_envs(module)
            pytest.importorskip("cv2")
        if package == "minatar":
            import sb3_grpo.envs.minatar  # noqa: F401
    env_id, _, variant = name.partition(" ")
    if "NoFrameskip" in env_id:
        env: gym.Env = AtariWrapper(Monitor(gym.make(env_id)), terminal_on_life_loss=variant == "life")
        return StartQueue(gym.wrappers.FrameStackObservation(env, 4))
    kwargs = {"continuous": True, "enable_wind": True} if variant == "continuous" else {}
    return StartQueue(Monitor(gym.wrappers.RecordEpisodeStatistics(gym.make(env_id, **kwargs), stats_key="statistics")))
