import errno
import io
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3.common.base_class import BaseAlgorithm
from toy_envs import TINY, ToyEnv

from sb3_grpo.grpo import GRPO


def make_model(**kwargs: Any) -> GRPO:
    return GRPO("MlpPolicy", ToyEnv(), policy_kwargs=TINY, device="cpu", **kwargs)


def test_a_failure_while_saving_keeps_the_old_file(tmp_path: Path) -> None:
    model = make_model(gamma=0.9)
    model.save(tmp_path / "model")
    model.gamma = 0.5
    model.lock = threading.Lock()
    with pytest.raises(TypeError, match="pickle"):
        model.save(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model.zip"]
    assert GRPO.load(tmp_path / "model", device="cpu").gamma == 0.9


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(gamma=0.9)
    model.save(tmp_path / "model")
    model.gamma = 0.5

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    message = r"No space left .*model\.zip could not be written\. The older model\.zip is as it was\."
    with pytest.raises(OSError, match=message) as raised:
        model.save(tmp_path / "model")
    assert raised.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match=r"new\.zip could not be written\.$"):
        model.save(tmp_path / "new")
    assert GRPO.load(tmp_path / "model", device="cpu").gamma == 0.9
    assert [path.name for path in tmp_path.iterdir()] == ["model.zip"]


@pytest.mark.parametrize("save", [GRPO.save, BaseAlgorithm.save])
def test_names_are_those_of_sb3(save: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    monkeypatch.chdir(tmp_path)
    save(model, "a")
    save(model, Path("b.zip"))
    save(model, "c.best")
    with pytest.warns(UserWarning, match="Path 'new/folder' does not exist. Will create it."):
        save(model, "new/folder/d")
    Path("e.zip").mkdir()
    with pytest.warns(UserWarning, match="Path 'e.zip' is a folder. Will save instead to e.zip_2"):
        save(model, "e")
    files = sorted(str(path) for path in Path().rglob("*") if path.is_file())
    assert files == ["a.zip", "b.zip", "c.best", "e.zip_2", "new/folder/d.zip"]
    for path in files:
        GRPO.load(path, device="cpu")
    with pytest.raises(TypeError, match="invalid type"):
        save(model, 3)
    buffer = io.BytesIO()
    save(model, buffer)
    assert not buffer.closed and buffer.tell() > 0


def test_permissions_and_links_are_those_of_an_ordinary_file(tmp_path: Path) -> None:
    model, path = make_model(), tmp_path / "model.zip"
    umask = os.umask(0o027)
    try:
        model.save(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o604)
        model.save(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o604
    finally:
        os.umask(umask)
    (tmp_path / "elsewhere").mkdir()
    link, target = tmp_path / "latest.zip", tmp_path / "elsewhere" / "model.zip"
    link.symlink_to(target)
    for _ in range(2):  # the first time there is nothing behind it
        model.save(link)
        assert link.is_symlink() and GRPO.load(target, device="cpu")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["elsewhere", "latest.zip", "model.zip", "model.zip"]
