"""Files of which there is always a whole one."""

import errno
import io
import os
import secrets
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stable_baselines3.common.save_util import open_path

# What a disk says that takes no more
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})


def save_location(path: str | Path, suffix: str) -> Path:
    """
    :param path: Where a user wants to save
    :param suffix: What to add to a name without one
    :return: Where SB3 saves then: not in the place of a folder
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
    Write a file that takes the place of an older one at the end of the ``with`` block, and not before: after an exception,
    or when the process is killed, the old one is still there. (A process that is killed leaves an unfinished ``.part``.)
    Permissions and links stay as with ``open``.

    :param path: Where; a missing folder is made as SB3 does it
    :param durable: Whether it survives a power cut if anything that is written later does
    :return: The file to write to
    """
    if path.is_symlink():
        path = Path(os.path.realpath(path))
    exists = os.path.lexists(path)
    if exists and not path.is_file():  # a pipe, a device
        with path.open("wb") as device:
            yield device
        return
    if exists:
        with path.open("r+b"):
            pass
    part = path.with_name(f"{path.name[:50]}.{secrets.token_hex(4)}.part")
    try:
        with open_path(part, "w") as file:
            if exists:
                part.chmod(stat.S_IMODE(path.stat().st_mode))
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def replace_text(path: Path, text: str, durable: bool = True) -> None:
    """
    Write a text by ``replace_file``.

    :param path: Where
    :param text: The content
    :param durable: See ``replace_file``
    """
    with replace_file(path, durable) as file:
        file.write(text.encode())


def write_or_rescue(path: Path, write: Callable[[io.BufferedIOBase], None]) -> None:
    """
    Write a file by ``replace_file``. If the disk has no room, write it into another folder before that is said.

    :param path: Where
    :param write: What writes it, called again for the other folder
    :raises OSError: if the file could not be written there, with where it is instead
    """
    try:
        with replace_file(path) as file:
            write(file)
    except Exception as error:
        code = no_room(error)
        if code is None:
            raise
        old = f"The older {path.name} is as it was. " if path.exists() else ""
        elsewhere = _rescue(path, write)
        instead = "No other folder has room, either." if elsewhere is None else f"It is in {elsewhere} instead."
        raise OSError(code, f"{os.strerror(code)}: {path} could not be written. {old}{instead}") from error


def no_room(error: BaseException | None) -> int | None:
    """
    :param error: What was raised
    :return: The system's number of it, if the reason is a disk that takes no more
    """
    # PyTorch and zipfile have errors of their own for it
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return error.errno
        error = error.__cause__ or error.__context__
    return None


def _rescue(path: Path, write: Callable[[io.BufferedIOBase], None]) -> Path | None:
    for folder in (Path(tempfile.gettempdir()), Path.home(), Path.cwd()):
        target = folder / f"{path.stem}.{secrets.token_hex(4)}{path.suffix}"
        # Whatever it is: the next folder may do
        with suppress(Exception):
            with replace_file(target) as file:
                write(file)
            return target
    return None
