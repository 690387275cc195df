import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from functools import partial
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import sb3_grpo

ROOT = Path(__file__).resolve().parent.parent
SB3_NEEDS = {Requirement(line).name for line in requires("stable_baselines3") or () if "extra ==" not in line}
OPTIONAL = {"ale_py", "cv2", "Box2D", "mujoco", "pygame", "tensorboard", "rliable", "pandas", "matplotlib", "rl_zoo3", "yaml"}


def run_python(code: str, folder: Path) -> str:
    """Run Python where the source checkout is not the current folder."""
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def files(folder: Path) -> list[Path]:
    """What is in a folder, apart from compiled files."""
    return [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built from the source distribution alone, as pip does."""
    pytest.importorskip("setuptools", minversion="77")
    # A copy, because setuptools writes into the source folder
    source = tmp_path_factory.mktemp("source")
    for name in ("sb3_grpo", "envs", "zoo_configs", "docs/notebooks"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run_python("from setuptools.build_meta import build_sdist; build_sdist('dist')", source)
    unpacked = tmp_path_factory.mktemp("sdist")
    shutil.unpack_archive(next(source.glob("dist/*.tar.gz")), unpacked)
    folder = next(unpacked.iterdir())
    run_python("from setuptools.build_meta import build_wheel; build_wheel('.')", folder)
    return next(folder.glob("*.whl"))


def test_wheel_has_every_file(wheel: Path) -> None:
    expected = {str(path.relative_to(ROOT)) for path in files(ROOT / "sb3_grpo")}
    expected |= {f"sb3_grpo/{path.relative_to(ROOT)}" for name in ("envs", "zoo_configs") for path in files(ROOT / name)}
    expected |= {f"sb3_grpo/notebooks/{path.name}" for path in (ROOT / "docs" / "notebooks").glob("*.ipynb")}
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if ".dist-info/" not in name} == expected


@pytest.mark.slow
def test_wheel_works_in_an_environment_of_its_own(wheel: Path, tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    pytest.importorskip("pip", minversion="22.3")
    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = partial(subprocess.run, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    run([sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel])
    # What the package needs is not installed once more, but taken from here; the package is not found this way
    site = next(tmp_path.glob("venv/lib/python*/site-packages"))
    (site / "needed.pth").write_text(sysconfig.get_path("purelib"))
    code = (
        "import gymnasium as gym; print(gym.make('sb3_grpo:sb3_grpo/VerifierText-v0').unwrapped.__module__)\n"
        "import sb3_grpo.envs; print(sb3_grpo.__path__, sb3_grpo.envs.__file__)\n"
        "from sb3_grpo.zoo.hyperparams import config_path; print(config_path('dapo'))"
    )
    package = site / "sb3_grpo"
    assert run([python, "-c", code]).stdout.splitlines() == [
        "sb3_grpo.envs.text.env",
        f"{[str(package)]} {package / 'envs' / '__init__.py'}",
        str(package / "zoo_configs" / "dapo.yml"),
    ]
    assert run([python.parent / "sb3-grpo", "--version"]).stdout.strip() == f"sb3-grpo {sb3_grpo.__version__}"


def test_import_needs_no_optional_package(tmp_path: Path) -> None:
    code = (
        f"import os, sys; sys.path.insert(0, {str(ROOT)!r}); os.environ.pop('ONEDNN_PRIMITIVE_CACHE_CAPACITY', None)\n"
        f"sys.modules.update(dict.fromkeys({sorted(OPTIONAL - SB3_NEEDS)!r}))\n"
        "from sb3_grpo import DAPO, envs\n"
        "print(DAPO('MlpPolicy', 'CartPole-v1', device='cpu').learn(200).num_timesteps, envs.__file__)"
    )
    n_timesteps, file = run_python(code, tmp_path).split()
    assert int(n_timesteps) >= 200 and file == str(ROOT / "envs" / "__init__.py")


def test_import_changes_nothing_outside_and_loads_what_control_needs(tmp_path: Path) -> None:
    code = (
        f"import os, sys; sys.path.insert(0, {str(ROOT)!r}); os.environ.pop('ONEDNN_PRIMITIVE_CACHE_CAPACITY', None)\n"
        "import stable_baselines3\n"
        "before = dict(os.environ), [*sys.meta_path]\n"
        "from sb3_grpo import GRPO, make_group_env\n"
        "assert before == (dict(os.environ), [*sys.meta_path])\n"
        "others = {'text', 'snapshots', 'probes', 'export', 'classroom', 'zoo'}\n"
        "assert not [each for each in sys.modules if each.startswith('sb3_grpo.') and others & {*each.split('.')}]\n"
        # Or convolutions of ever new sizes take ever more memory
        "import numpy as np, gymnasium as gym\n"
        "images = gym.spaces.Box(0, 255, (1, 36, 36), np.uint8)\n"
        "from sb3_grpo.grpo import CnnPolicy, TokenPolicy\n"
        "CnnPolicy(images, gym.spaces.Discrete(2), lambda _: 1e-3)\n"
        "print(os.environ['ONEDNN_PRIMITIVE_CACHE_CAPACITY'])"
    )
    assert run_python(code, tmp_path).strip() == "32"


def versions(requirements: list[str], operator: str, python: str) -> dict[str, Version]:
    """The version that stands behind an operator, for each package that this Python asks for."""
    parsed = [
        each for each in map(Requirement, requirements) if not each.marker or each.marker.evaluate({"python_version": python})
    ]
    assert len({each.name for each in parsed}) == len(parsed)
    return {each.name: Version(part.version) for each in parsed for part in each.specifier if part.operator == operator}


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
def test_lowest_versions_are_those_of_pyproject(python: str) -> None:
    asked_for = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    lines = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    lowest = versions(asked_for, ">=", python)
    pinned = versions([line for line in lines if not line.startswith("#")], "==", python)
    assert pinned.keys() == lowest.keys() == {Requirement(each).name for each in asked_for}
    # A newer Python may have no wheels of the lowest
    assert all(pinned[name] == lowest[name] if python == "3.11" else pinned[name] >= lowest[name] for name in lowest)


def test_what_is_written_in_several_files_agrees() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = [re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", each) for each in project["classifiers"]]
    pythons = "[" + ", ".join(f'"{each[1]}"' for each in found if each) + "]"
    assert pythons in (ROOT / "noxfile.py").read_text() and pythons in (ROOT / ".github/workflows/ci.yml").read_text()
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"version: {sb3_grpo.__version__}\n" in citation
    bibtex = (ROOT / "docs" / "how_do_i.md").read_text()
    assert f"version = {{{sb3_grpo.__version__}}}" in bibtex
    title, url = (re.search(rf'^{key}: "?(.*?)"?$', citation, re.MULTILINE)[1] for key in ("title", "repository-code"))  # type: ignore
    assert f"title = {{{title}}}" in bibtex and f"url = {{{url}}}" in bibtex
    assert f"Release {sb3_grpo.__version__} " in (ROOT / "CHANGELOG.md").read_text()
    ruff = re.search(r"^ruff==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert ruff and f"ruff-pre-commit\n    rev: v{ruff[1]}\n" in (ROOT / ".pre-commit-config.yaml").read_text()
