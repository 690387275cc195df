from pathlib import Path

import pytest
import yaml

pytest.importorskip("rl_zoo3")

from benchmarks import entries, parts


def test_parts_are_the_whole_entry_and_change_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = {}
    monkeypatch.setattr(entries, "train", lambda name, task, algo, entry, seed, folder: trained.update({name: entry}))
    known = entries.entries(parts.ALGO)
    defaults, whole = parts.hyperparameters(known["default"]), parts.hyperparameters(known[parts.TASK])
    for part in parts.PARTS:
        for arm in parts.ARMS:
            parts.train(part, arm, seed=0, folder=Path())
    changed = {}
    for name, entry in trained.items():
        part, arm, _ = name.split("-", 2)
        found, rest = parts.hyperparameters(yaml.safe_load(yaml.safe_dump(entry))), defaults if arm == "alone" else whole
        changed[name] = {key for key in found | rest if found.get(key) != rest.get(key)}
        assert changed[name] == {*parts.PARTS[part].keys}
    differ = {key for key in defaults | whole if defaults.get(key) != whole.get(key)}
    assert set().union(*changed.values()) == differ
