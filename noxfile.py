"""
The tests with the lowest and the newest versions of what the package needs, on each Python: ``nox``, or one of ``nox --list``.
"""

import nox

PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
# What touches Stable-Baselines3, Gymnasium, torch and NumPy most; other paths: nox -- tests
QUICK = [
    "tests/common/test_run.py",
    "tests/common/test_save_load.py",
    "tests/common/test_spaces.py",
    "tests/common/test_vec_envs.py",
    "tests/envs/test_verifier_vec_env.py",
    "tests/groups/test_groups.py",
    "tests/starts/test_snapshots.py",
    "tests/starts/test_start_queue.py",
    "tests/text/test_token_policies.py",
]
# PyYAML: of the benchmarks, which some tests import
TOOLS = ["pytest", "PyYAML"]
_PRINT = "import {0}; print('{0}', {0}.__version__)"

nox.needs_version = ">=2024.4.15"
nox.options.default_venv_backend = "uv|virtualenv"


@nox.session(python=PYTHONS)
@nox.parametrize("versions", ["lowest", "newest"], ids=["lowest", "newest"])
def tests(session: nox.Session, versions: str) -> None:
    """
    Run the quick part of the tests, or the paths after ``--``.

    :param session: With a Python of its own
    :param versions: "lowest": those of constraints-lowest.txt; "newest": whatever the registry has
    """
    constraints = ["-c", "constraints-lowest.txt"] if versions == "lowest" else ["--upgrade"]
    session.install(*constraints, "-e", ".", *TOOLS)
    for package in ("stable_baselines3", "gymnasium", "torch", "numpy"):
        session.run("python", "-c", _PRINT.format(package), silent=False)
    session.run(
        "python",
        "-m",
        "pytest",
        "-q",
        "--disable-warnings",
        "-m",
        "not slow and not long",
        *(session.posargs or QUICK),
        env={"OMP_NUM_THREADS": "1"},
    )
