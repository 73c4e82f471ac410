"""The axes: one small file each. Importing this package fills `gpu_conformance.registry.AXES`."""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
