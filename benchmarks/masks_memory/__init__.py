"""Tasks with action masks, tasks that need a memory, and one with both: ``python -m benchmarks.masks_memory.run``."""
