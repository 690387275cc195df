"""Files of which there is always a whole one."""

import io
import os
import secrets
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stable_baselines3.common.save_util import open_path


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
def replace_file(path: Path) -> Iterator[io.BufferedIOBase]:
    """
    Write a file that takes the place of an older one at the end of the ``with`` block, and not before: after an exception,
    or when the process is killed, the old one is still there. (A process that is killed leaves an unfinished ``.part``.)
    Permissions and links stay as with ``open``.

    :param path: Where; a missing folder is made as SB3 does it
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
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
