"""Where Python finds the parts of the package that lie outside of its folder in a source checkout."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_PACKAGE = Path(__file__).resolve().parent
# In a wheel these folders lie in the package
_OUTSIDE = {"envs": _PACKAGE.parent, "notebooks": _PACKAGE.parent / "docs", "zoo_configs": _PACKAGE.parent}


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        if package == "sb3_grpo" and name in _OUTSIDE and not (_PACKAGE / name).is_dir():
            return PathFinder.find_spec(fullname, [str(_OUTSIDE[name])])
        return None


# Before all other finders: with several checkouts, each has its own envs
sys.meta_path.insert(0, _Finder())
