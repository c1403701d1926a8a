"""The half types that the device computes in by itself; others are converted, which takes many times as long."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .steps import Steps

_INFO = Path("/proc/cpuinfo")
# Words of x86 and of ARM for what multiplies numbers of a type.
_FLAGS = {"bf16": {"avx512_bf16", "amx_bf16", "bf16"}, "fp16": {"avx512_fp16", "amx_fp16", "asimdhp"}}
_GPUS = {"bf16": (8, 0), "fp16": (7, 0)}


def watch(steps: Steps) -> None:
    """Say at the end what the device of the first loss computes in."""

    def facts() -> Iterator[tuple[str, Any]]:
        on_cpu = steps.device in (None, "cpu")
        yield "computes_in", sorted(_of_processor() if on_cpu else _of_gpu(steps.torch))

    steps.record.finishers.append(facts)


def _of_processor() -> set[str]:
    try:
        lines = _INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    words = {word for line in lines if line.lower().startswith(("flags", "features")) for word in line.split()}
    return {name for name, flags in _FLAGS.items() if flags & words}


def _of_gpu(torch: Any) -> set[str]:
    if not torch.cuda.is_available():
        return set()
    capability = torch.cuda.get_device_capability()
    return {name for name, least in _GPUS.items() if capability >= least}
