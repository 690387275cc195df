"""
The pages say what works: their Python runs and does what it is there for, their commands are understood. In
``<!-- invisible-code-block: python``, below a program, stands what it has to have done.
"""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3.common.preprocessing import is_image_space

from sb3_grpo import GRPO
from sb3_grpo.cli.main import _make_parser

sybil = pytest.importorskip("sybil")
from sybil.document import Document  # noqa: E402
from sybil.example import Example  # noqa: E402
from sybil.parsers.myst import PythonCodeBlockParser  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if page.exists() and "_build" not in page.parts]
# Stands before a block that takes long
LONG = "<!-- long -->"
# Stands before a block that needs a download, or a command line of its own
SKIPPED = re.compile(r"<!-- skip[^>]*-->\s*$")
pytestmark = pytest.mark.usefixtures("empty_folder")
# The same for a page without such blocks
PROMISES = {"README.md": "model.num_timesteps >= 5_000 and Path('cartpole.zip').exists()"}
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def blocks(page: Path) -> list[Example]:
    """The Python of a page. Its blocks share their names, from top to bottom."""
    examples = [*Document.parse(str(page), PythonCodeBlockParser())]
    for example in examples:
        # Or what stands below "if __name__" would not run
        example.namespace["__name__"] = "__main__"
    return [example for example in examples if not SKIPPED.search(example.document.text[: example.start])]


def is_long(example: Example) -> bool:
    return example.document.text[: example.start].rstrip().endswith(LONG)


def commands(page: Path) -> list[str]:
    """The lines of the shell blocks of a page."""
    shells = re.findall(r"^```(?:bash|sh|shell)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return [line for shell in shells for line in shell.replace("\\\n", " ").splitlines() if line.strip()]


def with_what(function, pages: list[Path]) -> list:
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages if function(page)]


@pytest.mark.parametrize("page", with_what(blocks, PAGES))
def test_python(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learn = GRPO.learn

    def briefly(model: GRPO, total_timesteps: int | None = None, callback: Any = None, **others: Any) -> GRPO:
        # A callback may need as many as the page says
        if callback is None and total_timesteps is not None:
            total_timesteps = min(total_timesteps, 5_000)
            if is_image_space(model.observation_space):
                total_timesteps, model.n_epochs = 1_000, 1
        return learn(model, total_timesteps, callback, **others)

    monkeypatch.setattr(GRPO, "learn", briefly)
    for example in blocks(page):
        if not is_long(example):
            example.evaluate()
    promise = PROMISES.get(str(page.relative_to(ROOT)))
    assert promise is None or eval(promise, {"Path": Path, **example.namespace}), promise


@pytest.mark.long
@pytest.mark.parametrize("page", with_what(lambda page: any(map(is_long, blocks(page))), PAGES))
def test_long_python(page: Path) -> None:
    for example in blocks(page):
        example.evaluate()


@pytest.mark.parametrize("page", with_what(commands, PAGES))
def test_commands(page: Path) -> None:
    for line in commands(page):
        words = shlex.split(line, comments=True)
        if words[:1] in (["python"], ["torchrun"]) and "sb3_grpo" in words:
            _make_parser().parse_args(words[words.index("sb3_grpo") + 1 :])
        elif words[:1] == ["sb3-grpo"]:
            _make_parser().parse_args(words[1:])
        elif words[:1] == ["make"]:
            assert {word for word in words[1:] if "=" not in word} <= TARGETS, line


def test_how_do_i_has_the_words_that_people_search_for() -> None:
    text = (ROOT / "docs" / "how_do_i.md").read_text()
    # What no reader sees is in no search either
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    words = (
        "net_arch, network architecture, features extractor, Optuna, best_model_save_path, StopTrainingOnRewardThreshold, "
        "VecNormalize, TensorBoard, Weights & Biases, wandb, several GPUs, ONNX, LSTM, significance, upgrade, changelog, "
        "out of memory, vLLM, num_generations, num_iterations, beta, licence, license, Cite, BibTeX"
    )
    assert [word for word in words.split(", ") if word not in text] == []
