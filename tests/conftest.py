from collections.abc import Iterator
from typing import Any

import pytest
import torch as th

from tests.browser import chromium

# Tiny networks: more threads only get into each other's way
th.set_num_threads(1)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started
