"""Records updates step by step, without changing them."""

from sb3_grpo.classroom.lecture.recording.callback import RecordUpdate

__all__ = ["RecordUpdate"]
