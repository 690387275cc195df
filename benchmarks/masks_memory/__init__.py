"""
Tasks with action masks, tasks that need a memory, and one with both, next to ``MaskablePPO`` and ``RecurrentPPO`` of SB3-Contrib:
``python -m benchmarks.masks_memory.run``.
"""
