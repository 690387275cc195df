import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch as th
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from sb3_grpo.text.transformer import CausalTransformer

# For benchmarks.common
pytest.importorskip("yaml")


def counted_flop(function: Any) -> int:
    # The counter knows matrix products, to which this backend breaks attention down
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


def test_the_benchmark_counts_the_flop_that_pytorch_counts() -> None:
    from benchmarks.text_device import Bench

    bench = Bench("cpu", "small", n_answers=16, n_new=4)
    bench.seconds()
    work, batch, policy = bench.work(), bench.model.batch, bench.policy
    assert batch is not None and batch.lengths.flatten().tolist() == [4] * 16, "all answers are as long as they may be"
    prefill = counted_flop(lambda: policy.generate_tokens(bench.prompts, 1))
    assert counted_flop(lambda: policy.generate_tokens(bench.prompts, 4)) - prefill == work["generation"]["flop"]

    # In one pass the backend also multiplies what is masked
    network = policy.network
    assert isinstance(network, CausalTransformer)
    length = bench.prompts.shape[1] + 3
    masked = 16 * length * (length - 1) / 2 * 4 * network.width * len(network.blocks)
    log_probs = counted_flop(lambda: bench._log_probs(batch.observations))
    assert log_probs == work["log_probs"]["flop"] + masked
    assert work["update"]["flop"] == 3 * work["log_probs"]["flop"]
    # The gradient takes two products for each one of the forward pass
    assert counted_flop(bench.model.train) == pytest.approx(3 * log_probs, rel=0.02)

    n_bytes = sum(4 * each.numel() for each in policy.parameters())
    weights = bench.costs.moved(1, 0)
    tables = sum(4 * each.weight.numel() for each in (network.token_embedding, network.position_embedding))
    assert 0.97 * (n_bytes - tables) < weights <= n_bytes - tables
    assert bench.costs.moved(0, 1) == 4 * 2 * network.width * len(network.blocks)


@pytest.mark.skipif(th.cuda.is_available(), reason="says what happens without a GPU")
def test_the_benchmark_runs_on_the_cpu_alone_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.text_device import main

    output = tmp_path / "result.json"
    options = f"--models small large --answers 8 --answer-tokens 2 --repeats 1 --threads 1 --output {output}"
    monkeypatch.setattr(sys, "argv", ["text_device.py", *options.split()])
    main()
    assert "The GPU was not run" in capsys.readouterr().out
    result = json.loads(output.read_text())
    assert result["gpu"].startswith("The GPU was not run") and result["missing"] == []
    (cpu,) = result["results"]
    assert (cpu["device"], cpu["model"]["name"], cpu["dtype"]) == ("cpu", "small", "float32")
    assert {*cpu["stages"]} == {"generation", "rollout", "verification", "log_probs", "update"}
    for stage in cpu["stages"].values():
        assert stage["tokens_per_second"] == pytest.approx(stage["tokens"] / stage["seconds"])
    assert {"command", "machine"} <= {*result}
