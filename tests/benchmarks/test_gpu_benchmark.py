"""The measurements on a GPU, tried on a CPU."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("peft")

from benchmarks import gpu
from benchmarks.language_model import speed


def test_everything_is_measured_and_what_fails_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    committed = [{"subject": "ours", "shape": gpu.SHAPES[0], **dict.fromkeys(gpu.RATES, rate)} for rate in (1.0, 2.0, 9.0)]
    (tmp_path / "speed.jsonl").write_text("\n".join(map(json.dumps, committed)))
    monkeypatch.setattr(speed, "OUTPUT", tmp_path / "speed.jsonl")

    def in_this_process(module: str, *options: Any) -> dict[str, float]:
        return gpu.measure(options[-2], speed.Shape(*json.loads(options[-1])), tiny="--tiny" in options)

    def out_of_memory(*_: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(gpu, "in_process", in_this_process)
    monkeypatch.setattr(gpu, "one_round", out_of_memory)
    result = gpu.measure_all(tiny=True, tests="7 passed in 1s")
    on_cpu, *measured = result["language_model"]
    assert on_cpu["way"] == "LoRA, on a CPU" and on_cpu["tokens_per_second"] == 2.0
    assert [row["way"] for row in measured] == ["all weights", "LoRA", "LoRA, on a CPU"]
    # A group has 4 answers of at most 3 tokens
    assert all(8 <= row["n_tokens"] <= 24 and all(row[key] > 0 for key in gpu.RATES) for row in measured)
    assert result["failed"] == ["Atari"]

    monkeypatch.setattr(gpu, "read_result", lambda name: json.loads(json.dumps(result)))
    said = gpu.table()
    assert "| LoRA | 2 x 4 x 3 |" in said and "| PPO, on a CPU |" in said
    assert "*CPU. Seconds by the clock" in said
