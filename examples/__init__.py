"""Programs that extend sb3_grpo from outside, with its public interface alone."""
