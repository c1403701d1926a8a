"""Random numbers that a loader's worker processes draw."""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable
from typing import Any

from . import imports
from .record import guarded
from .seeding import Draws
from .steps import Steps


def watch(steps: Steps) -> None:
    """Follow the workers of every ``DataLoader``."""
    workers = _Workers(steps)
    imports.after("torch.utils.data._utils.worker", workers.watch_loop)
    imports.after("torch.utils.data._utils.fetch", workers.watch_fetchers)


class _Workers:
    """In a worker: the states that the generators begin in, until it is known which of them are used."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self._began: dict[str, str] = {}
        self._draws: Draws | None = None
        self._told: set[str] = set()

    def watch_loop(self, module: Any) -> None:
        """Follow what a worker process runs."""
        loop = module._worker_loop
        signature = inspect.signature(loop)

        @functools.wraps(loop)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            try:
                bound = signature.bind(*args, **kwargs)
                bound.arguments["init_fn"] = self._after(bound.arguments.get("init_fn"))
            except (TypeError, KeyError):
                return loop(*args, **kwargs)
            return loop(*bound.args, **bound.kwargs)

        module._worker_loop = recorded

    def watch_fetchers(self, module: Any) -> None:
        """Follow what fetches samples, in workers and elsewhere."""
        for fetcher in (module._MapDatasetFetcher, module._IterableDatasetFetcher):
            fetcher.fetch = self._fetching(fetcher.fetch)

    def _after(self, init: Callable[[int], Any] | None) -> Callable[[int], None]:
        def begun(worker: int) -> None:
            if init is not None:
                init(worker)
            self._begin()

        return begun

    @guarded
    def _begin(self) -> None:
        self._draws = Draws(self.steps.torch)
        self._began = self._draws.marked()

    def _fetching(self, fetch: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fetch)
        def fetched(fetcher: Any, *args: Any, **kwargs: Any) -> Any:
            result = fetch(fetcher, *args, **kwargs)
            if self._draws is not None:
                self._look()
            return result

        return fetched

    @guarded
    def _look(self) -> None:
        assert self._draws is not None
        moved = {entry.partition(":")[0] for entry in self._draws.moved()} - self._told
        self._draws.mark()
        if not moved:
            return
        self._told |= moved
        record = self.steps.record
        drew = [f"{name}:{self._began[name]}" for name in sorted(moved) if name in self._began]
        with (record.folder / f"worker{record.rank}-{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"worker_drew": drew}) + "\n")
