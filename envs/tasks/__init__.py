"""Tasks, which create prompts and know the right answers."""

from sb3_grpo.envs.tasks.base import GeneratorTask, Item, PairsTask, Task

__all__ = ["GeneratorTask", "Item", "PairsTask", "Task"]
