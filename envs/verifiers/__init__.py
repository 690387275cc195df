"""Verifiers, which score answers with a time limit."""

from sb3_grpo.envs.verifiers.runner import VerifierError, is_equivalent, math_equivalent

__all__ = ["VerifierError", "is_equivalent", "math_equivalent"]
