"""Model files with data only: safetensors and JSON, each member with its hash. And a look into files with pickles."""

import base64
import hashlib
import io
import json
import lzma
import pathlib
import pickletools
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import safetensors.torch
import stable_baselines3 as sb3
from safetensors import SafetensorError
from stable_baselines3.common.save_util import open_path, save_to_zip_file
from stable_baselines3.common.utils import get_system_info

from sb3_grpo.common.safe_data import Decoder, Encoder, NotDataError

ModelFile = str | pathlib.Path | io.BufferedIOBase

_MANIFEST, _DATA, _SYSTEM = "manifest.json", "data.json", "system_info.txt"
# Maximum size in bytes of attributes to inspect: a small file can unpack to more than the memory
_MAX_LOOK = 2**24
_FORMAT, _VERSION = "sb3-grpo safe model", 1
# Name of the attributes in data.json, next to the state dicts, and of the file with their tensors
_ATTRIBUTES = "attributes"
# Names that SB3 does not treat as parameters: it would set their content anywhere in the model
_NO_PARAMETERS = frozenset({"pytorch_variables", "tensors"})


def write_safe_model(
    file: io.BufferedIOBase, data: dict[str, Any], params: dict[str, Any], policies: Mapping[str, type]
) -> None:
    """
    :param file: file to write to
    :param data: attributes of the model
    :param params: state dicts by name
    :param policies: policy classes by name
    :raises ValueError: if something is not data; the message says what to do
    """
    members: dict[str, bytes] = {_SYSTEM: get_system_info(print_info=False)[1].encode()}
    content = {}
    for name, value in {_ATTRIBUTES: data, **params}.items():
        encoder = Encoder(policies)
        content[name] = {key: _encoded(encoder, name, str(key), each) for key, each in value.items()}
        members[f"{name}.safetensors"] = safetensors.torch.save(encoder.tensors)
    members[_DATA] = json.dumps(content).encode()
    hashes = {name: hashlib.sha256(each).hexdigest() for name, each in members.items()}
    manifest = {"format": _FORMAT, "version": _VERSION, "stable_baselines3": sb3.__version__, "sha256": hashes}
    # Not compressed, so a small file needs little memory
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_MANIFEST, json.dumps(manifest, indent=1))
        for name, each in members.items():
            archive.writestr(name, each)


def _encoded(encoder: Encoder, section: str, key: str, value: Any) -> Any:
    """
    :param encoder: the encoder
    :param section: attributes, or the name of a state dict
    :param key: name of the attribute, or key in the state dict
    :param value: its value
    :return: the value for JSON
    :raises ValueError: if the value is not data; the message says what to do
    """
    try:
        return encoder.encode(key, value)
    except NotDataError as error:
        anew = f'leave it out with exclude=["{key}"] and give it anew with load(path, custom_objects=dict({key}=...)), '
        raise ValueError(
            f'{error}: format="safe" has no pickles. Write it as data (LinearSchedule in place of a function, the name of an '
            f'advantage), {anew if section == _ATTRIBUTES else ""}or save with format="sb3".'
        ) from error


@contextmanager
def _opened(path: ModelFile) -> Iterator[zipfile.ZipFile]:
    file = open_path(path, "r", verbose=0, suffix="zip")
    position = file.tell()
    try:
        with zipfile.ZipFile(file) as archive:
            yield archive
    # RuntimeError: encrypted, or compressed with an unknown method
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, RuntimeError, EOFError, OSError) as error:
        raise ValueError(f"{path} is no zip file of a model, or damaged: {error}") from error
    finally:
        if file is not path:
            file.close()
        else:
            file.seek(position)


def is_safe_model(path: ModelFile) -> bool:
    """
    :param path: path to the file, or the open file
    :return: whether it was saved with ``format="safe"``
    """
    with _opened(path) as archive:
        return _MANIFEST in archive.namelist()


def read_safe_model(path: ModelFile, policies: Mapping[str, type]) -> tuple[dict[str, Any], dict[str, Any]]:
    """
    :param path: path to the file, or the open file
    :param policies: policy classes by name
    :return: attributes of the model, and state dicts by name
    :raises ValueError: if a member is not the one that was saved, or its content is not that of a model
    """
    with _opened(path) as archive:
        members = _verified(archive, path)
    try:
        content = json.loads(members[_DATA])
        if strange := sorted(_NO_PARAMETERS & content.keys()):
            raise ValueError(f"there are no parameters by the name of {strange[0]}")
        read = {}
        for name, parts in content.items():
            decoder = Decoder(policies, safetensors.torch.load(members[f"{name}.safetensors"]))
            read[name] = {key: decoder.decode(each) for key, each in parts.items()}
        return read.pop(_ATTRIBUTES), read
    except (ValueError, AssertionError, KeyError, AttributeError, TypeError, RecursionError, SafetensorError) as error:
        raise ValueError(f"{path} is not what save has written: {error}") from error


def _verified(archive: zipfile.ZipFile, path: ModelFile) -> dict[str, bytes]:
    """
    :param archive: file of a model
    :param path: path to the file, for error messages
    :return: content of its members by name
    :raises ValueError: if the members are not the ones that were saved, or the format is unknown
    """
    members = {}
    for info in archive.infolist():
        if info.compress_type != zipfile.ZIP_STORED or info.filename in members:
            raise ValueError(f"{path}: {info.filename} is compressed or there twice, as save does not write it.")
        members[info.filename] = archive.read(info)
    try:
        manifest = json.loads(members.pop(_MANIFEST))
        kind, version, hashes = manifest["format"], manifest["version"], dict(manifest["sha256"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: its {_MANIFEST} cannot be read ({error}).") from error
    if kind != _FORMAT or version != _VERSION:
        raise ValueError(f"{path} has the format {kind!r:.40}, version {version!r:.40}, which this version does not read.")
    for name in sorted({*members, *hashes}):
        if name not in members or hashes.get(name) != hashlib.sha256(members[name]).hexdigest():
            raise ValueError(f"{path}: {name} is not the one that was saved with this model (its hash is another).")
    if _DATA not in members:
        raise ValueError(f"{path} has no {_DATA}.")
    return members


def as_sb3_file(names: Iterable[str], params: dict[str, Any]) -> io.BytesIO:
    """
    :param names: names of the attributes. Their values are passed as ``custom_objects``: in the file they would be JSON
        again, and SB3 would treat some of it as pickles
    :param params: state dicts by name
    :return: an in-memory file that SB3 can load
    """
    file = io.BytesIO()
    save_to_zip_file(file, data=dict.fromkeys(names), params=params, pytorch_variables={})
    file.seek(0)
    return file


def pickles_in(path: ModelFile) -> list[str]:
    """
    Inspect a file without loading it.

    :param path: path to the file, or the open file
    :return: for each pickled attribute, its name and the names in its pickle; the names of pickled members
    """
    found = []
    with _opened(path) as archive:
        try:
            with archive.open("data") as file:
                text = file.read(_MAX_LOOK + 1)
            if len(text) > _MAX_LOOK:
                raise ValueError("they are too large")
            data = json.loads(text)
            for name, saved in data.items():
                if isinstance(saved, dict) and ":serialized:" in saved:
                    found.append(
                        f"{name} ({', '.join(_names_in(base64.b64decode(saved[':serialized:']))) or 'nothing by name'})"
                    )
        except (KeyError, ValueError, AttributeError, TypeError, RecursionError) as error:
            found.append(f"attributes that cannot be read ({type(error).__name__})")
        found += [f"{name}" for name in archive.namelist() if name.endswith((".pth", ".pkl"))]
    return found


def _names_in(pickled: bytes) -> list[str]:
    """
    :param pickled: a pickle, which is not loaded
    :return: names of the modules and functions that it refers to
    """
    names: set[str] = set()
    texts: list[str] = []
    memo: dict[int, str | None] = {}
    last: str | None = None
    try:
        for operation, argument, _ in pickletools.genops(pickled):
            if operation.name in ("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"):
                memo[len(memo) if argument is None else int(argument)] = last
                continue
            last = (
                memo.get(int(argument or 0))
                if operation.name.endswith("GET")
                else argument
                if isinstance(argument, str)
                else None
            )
            if operation.name in ("GLOBAL", "INST"):
                names.add(str(argument).replace(" ", "."))
            elif operation.name == "STACK_GLOBAL":
                names.add(".".join(texts[-2:]))
            elif last is not None:
                texts.append(last)
    except Exception:  # deliberately damaged pickles
        names.add("something that cannot be read")
    return sorted(names)
