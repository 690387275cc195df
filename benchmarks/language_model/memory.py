"""
The memory of the loss with a large vocabulary: ``python -m benchmarks.language_model.memory``.

Peak memory of tensors (PyTorch's profiler) for 512 tokens of log probabilities, entropies and, where said, exact KL
divergences, forward and backward, from hidden states of width 576: in pieces, as in an update, and with all logits at once.
Hidden states and the last layer existed before, and do not count. Writes ``benchmarks/results/language_model/memory.json``.
"""

import json
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import accumulate, product
from pathlib import Path

import torch as th
from torch.profiler import ProfilerActivity, profile

from benchmarks.common import write_result
from sb3_grpo.text.token_distribution import TokenDistribution

VOCABULARIES = {"SmolLM2": 49_152, "Qwen": 151_936}
N_TOKENS, WIDTH = 512, 576


def peak_mib(function: Callable[[], None]) -> float:
    """
    :param function: What to measure
    :return: Peak memory in MiB of the tensors that it makes
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("name") == "[memory]"]
    return max(accumulate(event["args"]["Bytes"] for event in sorted(events, key=lambda each: each["ts"]))) / 2**20


def in_pieces(head: th.nn.Linear, hidden: th.Tensor, reference: th.Tensor | None) -> None:
    """
    :param head: The last layer
    :param hidden: (n, width) hidden states
    :param reference: Those of the reference policy
    """
    distribution = TokenDistribution(hidden, head, head.out_features)
    loss = distribution.log_prob(th.zeros(len(hidden), dtype=th.long)) - 0.01 * distribution.entropy()
    if reference is not None:
        loss = loss - distribution.exact_kl(TokenDistribution(reference, head, head.out_features))
    loss.mean().backward()


def at_once(head: th.nn.Linear, hidden: th.Tensor, reference: th.Tensor | None) -> None:
    """
    :param head: The last layer
    :param hidden: (n, width) hidden states
    :param reference: Those of the reference policy
    """
    log_probs = head(hidden).log_softmax(1)
    probs = log_probs.exp()
    loss = log_probs[:, 0] + 0.01 * (probs * log_probs).sum(1)
    if reference is not None:
        loss = loss - (probs * (log_probs - head(reference).log_softmax(1))).sum(1)
    loss.mean().backward()


def main() -> None:
    """Measure all."""
    rows = []
    for (name, size), kl, trains_head in product(VOCABULARIES.items(), (False, True), (False, True)):
        head = th.nn.Linear(WIDTH, size, bias=False).requires_grad_(trains_head)
        hidden = th.randn(N_TOKENS, WIDTH, requires_grad=True)
        reference = hidden.detach() * 0.9 if kl else None
        row = {"model": name, "vocabulary": size, "kl": kl, "trains_head": trains_head}
        for function in (in_pieces, at_once):
            head.weight.grad = hidden.grad = None
            row[f"{function.__name__}_mib"] = peak_mib(partial(function, head, hidden, reference))
        rows.append(row)
        print(row, flush=True)
    write_result("language_model/memory.json", {"n_tokens": N_TOKENS, "width": WIDTH, "rows": rows})


if __name__ == "__main__":
    main()
