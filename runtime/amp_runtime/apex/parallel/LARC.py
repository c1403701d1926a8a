"""``apex.parallel.LARC``."""

from amp_runtime.optim.larc import LARC as LARC
