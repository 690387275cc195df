"""Optuna studies that several workers may share."""

import random
import time

import optuna
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
