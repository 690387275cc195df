"""
GRPO and DAPO in RL Baselines3 Zoo (extra ``zoo``). Importing this package registers them.

``python -m sb3_grpo.zoo train --algo dapo --env CartPole-v1`` runs the RL Zoo's own command line.
"""

try:
    from sb3_grpo.zoo.registration import register
except ModuleNotFoundError as error:
    if (error.name or "").startswith("sb3_grpo"):
        raise
    raise ImportError(
        f'RL Baselines3 Zoo needs {error.name}, which is not installed: pip install "sb3-grpo[zoo]"', name=error.name
    ) from None

register()

__all__ = ["register"]
