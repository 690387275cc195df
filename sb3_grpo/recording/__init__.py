"""Records updates step by step, without changing them."""

from sb3_grpo.recording.callback import RecordUpdate

__all__ = ["RecordUpdate"]
