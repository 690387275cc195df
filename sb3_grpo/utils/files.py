"""Atomic writing of files, so that there is always a complete one."""

import errno
import io
import os
import secrets
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Error codes of a disk that cannot be written to
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})


def save_location(path: str | Path, suffix: str) -> Path:
    """
    :param path: Path at which the user wants to save
    :param suffix: Suffix to add to a name without one
    :return: Path at which SB3 would save, which differs if there is a folder at this path
    """
    path = Path(path)
    if path.suffix == "":
        path = Path(f"{path}.{suffix}")
    while path.is_dir():
        warnings.warn(f"Path '{path}' is a folder. Will save instead to {path}_2")
        path = Path(f"{path}_2")
    return path


@contextmanager
def replace_file(path: Path, durable: bool = True) -> Iterator[io.BufferedIOBase]:
    """
    Write a file that only replaces the old one at the end of the ``with`` block: after an exception, or if the process is
    killed, the old file is still there. (A killed process leaves an unfinished ``.part`` file.)
    Permissions and symbolic links are preserved, as with ``open``. Other names of the file (hard links) keep the old one.

    :param path: Path of the file; a missing folder is created as in SB3
    :param durable: Whether the file survives a power cut if anything written later does
    :return: The file to write to, and to read from what has been written
    :raises OSError: if the disk is full, or cannot be written to for another reason
    """
    if path.is_symlink():
        path = Path(os.path.realpath(path))
    exists = os.path.lexists(path)
    if exists:
        with path.open("r+b"):
            pass
    if not path.parent.exists():
        warnings.warn(f"Path '{path.parent}' does not exist. Will create it.")
        path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name[:50]}.{secrets.token_hex(4)}.part")
    try:
        with part.open("w+b") as file:
            if exists:
                part.chmod(stat.S_IMODE(path.stat().st_mode))
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException as error:
        part.unlink(missing_ok=True)
        code = no_room(error)
        if code is None:
            raise
        old = f" The older {path.name} is as it was." if exists else ""
        raise OSError(code, f"{os.strerror(code)}: {path} could not be written.{old}") from error


def replace_text(path: Path, text: str, durable: bool = True) -> None:
    """
    Write a text with ``replace_file``.

    :param path: Path of the file
    :param text: The content
    :param durable: See ``replace_file``
    """
    with replace_file(path, durable) as file:
        file.write(text.encode())


def no_room(error: BaseException | None) -> int | None:
    """
    :param error: The error that was raised
    :return: The system's error code if the cause is a disk that cannot be written to, otherwise None
    """
    # PyTorch and zipfile raise their own errors in this case
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return error.errno
        error = error.__cause__ or error.__context__
    return None
