"""Optuna studies that several workers may share."""

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
    Create the tables of a new database, and retry on errors: of several workers that start at the same moment, all but one
    would otherwise fail.

    :param storage: URL of the database
    """
    for last in (False,) * 9 + (True,):
        try:
            optuna.storages.RDBStorage(storage)
        except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            if last:
                raise UsageError(f"--storage {storage}: {error}") from error
        except ImportError as error:
            # Optuna's message does not name the driver
            message = f"--storage {storage}: its driver is not installed ({error.__cause__ or error})"
            if storage.startswith("postgresql"):
                message += '. Write postgresql+psycopg://user@host/name, and pip install "psycopg[binary]"'
            raise UsageError(message) from error
        else:
            return
        time.sleep(random.uniform(0.1, 0.5))


def this_worker() -> dict[str, Any]:
    """
    :return: identifies this process among all that may work on a study
    """
    # Containers may share a host name, but the same process id stands for a different process in each of them
    namespace = os.readlink("/proc/self/ns/pid") if sys.platform == "linux" else ""
    return {"host": socket.gethostname(), "namespace": namespace, "pid": os.getpid(), "started": _start_time(os.getpid())}


def _start_time(pid: int) -> float:
    """
    :param pid: id of a process
    :return: its start time in seconds
    """
    if sys.platform == "linux":
        # psutil adds the boot time, so its value changes when the clock is set
        stat = Path(f"/proc/{pid}/stat").read_text()
        return int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return psutil.Process(pid).create_time()


def _has_ended(worker: dict[str, Any]) -> bool:
    """
    :param worker: see :func:`this_worker`
    :return: whether this process, on this machine, has ended
    """
    try:
        # Another process may have the same id by now, often so after a container restarts. And a killed process keeps its id
        # until its parent has waited for it
        another = abs(_start_time(worker["pid"]) - worker["started"]) > 1.0
        return another or psutil.Process(worker["pid"]).status() == psutil.STATUS_ZOMBIE
    except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
        return True
    except (PermissionError, psutil.AccessDenied):
        return False


def give_up_orphans(study: optuna.Study) -> None:
    """
    Mark trials as failed whose worker on this machine was killed. Otherwise they would count as running forever.

    :param study: the study
    """
    here = this_worker()
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        worker = trial.user_attrs.get("worker")
        # In older studies, it is a string
        if not isinstance(worker, dict) or any(worker[key] != here[key] for key in ("host", "namespace")):
            continue
        if _has_ended(worker):
            study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
