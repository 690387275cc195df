"""
What has to be measured on a GPU, meant to take less than eight minutes: ``python -m benchmarks.gpu``.

- the tests marked ``gpu``
- updates of SmolLM2 with 135M parameters: of all weights, computed in bfloat16, and of LoRA, with the others in bfloat16
- PPO and GRPO on an Atari game

Each in a process of its own; if one fails, the others go on. The CPU's figures are those of ``benchmarks.atari_speed`` and
``benchmarks.language_model.speed``; if the latter has none, LoRA is also measured on this machine's CPU, in single precision.
Writes ``benchmarks/results/gpu.json`` after each part, and, if none has failed, the tables of ``docs/results/speed.md``.

``--tiny`` tries everything on a CPU, with a tiny language model, and writes nothing.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch as th

from benchmarks.blocks import Writers, markdown, refresh_page
from benchmarks.common import PAGES, ROOT, read_result, rows, write_result
from benchmarks.language_model import speed
from benchmarks.language_model.speed import LORA, Shape
from benchmarks.timing import in_process, medians, one_round
from sb3_grpo.text.pretrained import SMOLLM2, find_model, load_tokenizer

# The first one is compared with a CPU
SHAPES, TINY_SHAPES = (speed.SHAPES[1], Shape(60, 64, 16, 8)), (Shape(4, 3, 4, 2),)
WAYS: dict[str, dict[str, Any]] = {"all weights": {"autocast": True}, "LoRA": {"lora": LORA, "dtype": "bfloat16"}}
ON_CPU = "LoRA, on a CPU"
RATES = ("tokens_per_second", "generated_per_second", "trained_per_second")
PAGE = PAGES / "speed.md"


def tiny_model() -> tuple[Any, Any]:
    """
    :return: A Llama of two layers with random weights, and its tokenizer
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    from sb3_grpo.envs.text.tokenizers import CharTokenizer

    tokenizer = CharTokenizer("0123456789+=")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=tokenizer.vocab_size, eos_token_id=tokenizer.eos_id, bos_token_id=None, **sizes)
    return LlamaForCausalLM(config), tokenizer


def measure(way: str, shape: Shape, tiny: bool) -> dict[str, float]:
    """
    :param way: One of ``WAYS``, or ``ON_CPU``
    :param shape: Lengths
    :param tiny: Whether to train a tiny model on a CPU
    :return: Rates, and peak memory in MiB
    """
    if tiny:
        (model, tokenizer), texts = tiny_model(), ["1+2=", "9+9="]
    else:
        model, tokenizer = find_model(SMOLLM2), load_tokenizer(SMOLLM2)
        texts = speed.prompts(tokenizer, shape, 64)
    policy_kwargs = {"model": model, **WAYS.get(way, {"lora": LORA})}
    on_gpu = not tiny and way != ON_CPU
    # On a CPU, an update takes half a minute
    n_updates, device = (4, "cuda") if on_gpu else (1, "cpu")
    figures = speed.train(shape, n_updates, tokenizer, texts, policy_kwargs, device, time.perf_counter)
    return figures | ({"peak_gpu_memory_mib": th.cuda.max_memory_allocated() / 2**20} if on_gpu else {})


def updates(way: str, shape: Shape, tiny: bool) -> list[dict[str, Any]]:
    """
    :param way: See :func:`measure`
    :param shape: See :func:`measure`
    :param tiny: See :func:`measure`
    :return: A row with what a process of its own measures
    """
    figures = in_process("benchmarks.gpu", *(["--tiny"] if tiny else []), "--one", way, json.dumps(shape))
    return [{"way": way, "shape": list(shape), **figures}]


def games(tiny: bool) -> list[dict[str, Any]]:
    """
    :param tiny: Whether to try it on a CPU
    :return: A row for PPO and one for GRPO
    """
    options = ("--steps", 3000, "--device", "cpu" if tiny else "cuda")
    rounds = [one_round(("ppo", "grpo"), "benchmarks.atari_speed", *options) for _ in range(1 if tiny else 3)]
    return [{"way": subject.upper(), **figures} for subject, figures in medians(rounds).items()]


def committed_on_cpu(shape: Shape) -> list[dict[str, Any]]:
    """
    :param shape: Lengths
    :return: A row with the medians of what ``benchmarks.language_model.speed`` has measured, if it has
    """
    found = [row for row in rows(speed.OUTPUT) if row["subject"] == "ours" and row["shape"] == list(shape)]
    rates = {key: float(np.median([row[key] for row in found])) for key in RATES if found}
    return [{"way": ON_CPU, "shape": list(shape), **rates}] if found else []


def measure_all(tiny: bool, tests: str) -> dict[str, Any]:
    """
    :param tiny: Whether to try it on a CPU
    :param tests: How the tests ended
    :return: What was measured
    """
    begin = time.perf_counter()
    on_cpu, atari = committed_on_cpu(SHAPES[0]), read_result("atari_speed.json")["median"]
    result: dict[str, Any] = {
        "device": "CPU" if tiny else th.cuda.get_device_name(),
        "tests": tests,
        "language_model": on_cpu,
        "atari": [
            {"way": f"{each.upper()}, on a CPU", **atari[each], "steps_per_second": atari[each]["steps_per_cpu_second"]}
            for each in ("ppo", "grpo")
        ],
        "failed": [],
    }
    shapes = TINY_SHAPES if tiny else SHAPES
    in_turn = [(way, shape) for shape in shapes for way in WAYS] + ([(ON_CPU, shapes[0])] if tiny or not on_cpu else [])
    parts: list[tuple[str, str, Callable[[], list[dict[str, Any]]]]] = [("atari", "Atari", partial(games, tiny))]
    parts += [("language_model", f"{way}, {shape}", partial(updates, way, shape, tiny)) for way, shape in in_turn]
    for part, name, measured in parts:
        try:
            result[part] += measured()
        except RuntimeError as error:
            # The time on the GPU must not be lost
            print(error, flush=True)
            result["failed"].append(name)
        else:
            print(result[part][-1], flush=True)
        result["seconds"] = time.perf_counter() - begin
        if not tiny:
            write_result("gpu.json", result)
    return result


def run_tests() -> tuple[str, bool]:
    """
    :return: The last line of what pytest says, and whether all tests passed
    """
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/common", "tests/text"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    print(done.stdout[-3000:], done.stderr[-3000:], flush=True)
    return (done.stdout.splitlines() or ["no tests ran"])[-1], done.returncode == 0


def table() -> str:
    """
    :return: A row for each measurement
    """

    def cells(row: dict[str, Any], keys: tuple[str, ...]) -> list[str]:
        values = [row.get(key) for key in (*keys, "peak_gpu_memory_mib")]
        return ["" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in values]

    result = read_result("gpu.json")
    shapes = [Shape(*row["shape"]) for row in result["language_model"]]
    sizes = [f"{each.n_groups} x {each.group} x {each.answer}" for each in shapes]
    of_model = [[row["way"], size, *cells(row, RATES[:1])] for row, size in zip(result["language_model"], sizes, strict=True)]
    of_games = [[row["way"], *cells(row, ("steps_per_second",))] for row in result["atari"]]
    columns = ["SmolLM2, 135M", "groups x answers x tokens", "tokens per second"]
    tables = [markdown([*columns, "GPU, MiB"], of_model)]
    tables.append(markdown(["KungFuMaster", "steps per second", "GPU, MiB"], of_games))
    caption = f"*{result['device']}. Seconds by the clock; on a CPU, CPU seconds of one thread.*"
    return "\n\n".join([*tables, caption])


WRITERS: Writers = {"gpu": table}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="try it on a CPU, with a tiny model")
    parser.add_argument("--one", nargs=2, metavar=("WAY", "SHAPE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one[0], Shape(*json.loads(args.one[1])), args.tiny)))
        return
    if not args.tiny and not th.cuda.is_available():
        parser.error("PyTorch finds no GPU; --tiny tries everything on a CPU")
    tests, passed = run_tests()
    result = measure_all(args.tiny, tests)
    if result["failed"] or not passed:
        sys.exit(f"Failed: {result['failed'] or tests}")
    if not args.tiny:
        refresh_page(PAGE, WRITERS)


if __name__ == "__main__":
    main()
