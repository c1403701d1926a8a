"""Runs the server: the conversation in one thread, and what takes time in the main one."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from threading import Thread

from amp_migrate.exit_codes import ExitCode
from amp_migrate.server.editor import Editor
from amp_migrate.server.worker import Worker


def serve(config: Path | None, verbose: bool) -> int:
    """Serve an editor on standard input and output until it ends the conversation."""
    _log_to_stderr(verbose)
    worker = Worker()
    editor = Editor(worker, config)
    # Whatever else prints would be taken for a message.
    channel, sys.stdout = sys.stdout, sys.stderr

    def talk() -> None:
        try:
            editor.server.start_io(sys.stdin.buffer, channel.buffer)
        finally:
            worker.stop()

    thread = Thread(target=talk, name="conversation", daemon=True)
    thread.start()
    worker.run()
    if worker.interrupted_from_outside:
        # The other thread waits for a line that may never come.
        os._exit(ExitCode.INTERRUPTED)
    thread.join()
    return ExitCode.FINE


def _log_to_stderr(verbose: bool) -> None:
    """Have only those see what goes on inside who ask for it."""
    for name in ("pygls", "amp_migrate.server", "asyncio"):
        logger = logging.getLogger(name)
        logger.propagate = False
        logger.addHandler(logging.StreamHandler() if verbose else logging.NullHandler())
        logger.setLevel(logging.INFO if verbose else logging.CRITICAL)
