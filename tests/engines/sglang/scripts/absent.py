"""Empty modules in place of torchvision, whose package needs CUDA. SGLang imports it for models with images, together
with its hierarchical cache. Import this module before SGLang."""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from transformers.utils import is_torchvision_available, is_torchvision_v2_available


class Absent(ModuleType):
    """A module in which every name is an empty class."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class Finder(MetaPathFinder, Loader):
    """Finds torchvision's modules."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.split(".")[0] == "torchvision" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


# transformers remembers that there is no torchvision, and does not use what is found from now on.
assert not is_torchvision_available()
assert not is_torchvision_v2_available()
sys.meta_path.append(Finder())
