"""Studies of Optuna, on which several workers may be at work."""

import os
import random
import socket
import sys
import time
from pathlib import Path
from typing import Any

import optuna
import psutil
from optuna.trial import TrialState
from sqlalchemy.exc import SQLAlchemyError

from sb3_grpo.console import UsageError


def make_tables(storage: str) -> None:
    """
    Make the tables of a new database. Workers that begin at the same moment get into each other's way there,
    and all but one of them would end with an error.

    :param storage: URL of the database
    """
    for last in (False,) * 9 + (True,):
        try:
            optuna.storages.RDBStorage(storage)
        except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            if last:
                raise UsageError(f"--storage {storage}: {error}") from error
        except ImportError as error:
            # Optuna's words do not say which
            message = f"--storage {storage}: its driver is not installed ({error.__cause__ or error})"
            if storage.startswith("postgresql"):
                message += '. Write postgresql+psycopg://user@host/name, and pip install "psycopg[binary]"'
            raise UsageError(message) from error
        else:
            return
        time.sleep(random.uniform(0.1, 0.5))


def this_worker() -> dict[str, Any]:
    """
    :return: what tells this process from all others that may work on a study
    """
    # Containers may share a name, but what a number stands for is another process in each of them
    namespace = os.readlink("/proc/self/ns/pid") if sys.platform == "linux" else ""
    return {"host": socket.gethostname(), "namespace": namespace, "pid": os.getpid(), "started": _start_time(os.getpid())}


def _start_time(pid: int) -> float:
    """
    :param pid: number of a process
    :return: when it began, in seconds
    """
    if sys.platform == "linux":
        # What psutil says changes when the clock is set: it adds the time at which the machine was booted
        stat = Path(f"/proc/{pid}/stat").read_text()
        return int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return psutil.Process(pid).create_time()


def _has_ended(worker: dict[str, Any]) -> bool:
    """
    :param worker: see :func:`this_worker`
    :return: whether this process of this machine has ended
    """
    try:
        # Another one may have its number by now: where a container is started again, it often has. And one that was killed
        # keeps its own until the process that began it asks for its end
        another = abs(_start_time(worker["pid"]) - worker["started"]) > 1.0
        return another or psutil.Process(worker["pid"]).status() == psutil.STATUS_ZOMBIE
    except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
        return True
    except (PermissionError, psutil.AccessDenied):
        return False


def give_up_orphans(study: optuna.Study) -> None:
    """
    Trials whose worker on this machine was killed would otherwise be running forever, and count as such.

    :param study: the study
    """
    here = this_worker()
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        worker = trial.user_attrs.get("worker")
        # Not text, as it was in older studies
        if not isinstance(worker, dict) or any(worker[key] != here[key] for key in ("host", "namespace")):
            continue
        if _has_ended(worker):
            study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
