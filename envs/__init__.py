"""Environments that come with sb3-grpo. This folder is imported as ``sb3_grpo.envs``."""
