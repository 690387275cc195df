"""Where Python finds parts of the package that do not lie, or no longer lie, where their names say."""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_PACKAGE = Path(__file__).resolve().parent
# In a wheel these folders lie in the package, in a source checkout outside of it
_OUTSIDE = {"envs": _PACKAGE.parent, "notebooks": _PACKAGE.parent / "docs", "zoo_configs": _PACKAGE.parent}

# Modules of version 0.1 whose names stand in saved models, pickled starts and configuration files
_MOVED = {
    "sb3_grpo.common.causal_lm": "sb3_grpo.text.causal_lm",
    "sb3_grpo.common.starts": "sb3_grpo.starts.starts",
    "sb3_grpo.common.token_policies": "sb3_grpo.text.policies",
    "sb3_grpo.common.tokens": "sb3_grpo.text.tokens",
    "sb3_grpo.envs.curriculum": "sb3_grpo.envs.text.hard_prompts",
    "sb3_grpo.envs.tokenizers": "sb3_grpo.envs.text.tokenizers",
}


class _Moved(Loader):
    """Imports a module by its new name."""

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        old, new = module.__name__, _MOVED[module.__name__]
        warnings.warn(f"{old} is {new} now. The old name will go with the next version.", DeprecationWarning)
        # The import system takes what stands here after this call
        sys.modules[old] = importlib.import_module(new)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in _MOVED:
            return ModuleSpec(fullname, _Moved())
        package, _, name = fullname.rpartition(".")
        if package == "sb3_grpo" and name in _OUTSIDE and not (_PACKAGE / name).is_dir():
            return PathFinder.find_spec(fullname, [str(_OUTSIDE[name])])
        return None


# Before all other finders: with several checkouts, each has its own envs
sys.meta_path.insert(0, _Finder())
