"""What ``import apex_C`` finds in a process spawned by one that called ``amp_runtime.apex.install()``."""

import importlib
import sys

from amp_runtime.apex import install

install()
sys.modules[__name__] = importlib.import_module("amp_runtime.apex.apex_C")
