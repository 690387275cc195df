"""Description of the machine and the software, for measurements of speed and memory."""

import functools
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch as th

# Where the package is, and its version
_PACKAGE = Path(__file__).resolve().parents[1]
VERSION = (_PACKAGE / "version.txt").read_text().strip()


def cpu_name() -> str:
    """
    :return: the processor's name, as far as the system knows it
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def describe_machine() -> dict[str, Any]:
    """
    :return: the system, the processor and the number of processors
    """
    return {"platform": platform.platform(), "cpu": cpu_name(), "cpu_count": os.cpu_count()}


def versions(*more: str) -> dict[str, str]:
    """
    :param more: names of further packages
    :return: the version of each package that results depend on
    """
    # PyTorch's own version includes the build (+cpu, +cu130), unlike the metadata of its wheels on PyPI
    found = {"sb3_grpo": VERSION, "torch": str(th.__version__)}
    for package in ("stable_baselines3", "gymnasium", "numpy", *more):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    commit = source_commit()
    return found | ({"sb3_grpo commit": commit} if commit else {}) | {"python": platform.python_version()}


@functools.cache
def source_commit() -> str | None:
    """
    :return: git's description of the sources' commit, None if they are not in a checkout
    """
    if not (_PACKAGE.parent / ".git").exists():
        return None
    try:
        command = ["git", "describe", "--always", "--dirty"]
        return subprocess.run(command, cwd=_PACKAGE, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def peak_memory() -> float:
    """
    :return: the peak memory of this process since it started, in MiB
    """
    try:
        # Not ru_maxrss, which starts with the peak of the parent process
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    except (OSError, StopIteration):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024**2 if sys.platform == "darwin" else 1024)
