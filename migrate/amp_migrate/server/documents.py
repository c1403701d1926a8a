"""The open files, and when they are judged: at once when they are opened or saved, else when typing pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from amp_migrate.internal_errors import where
from amp_migrate.problems import UserError
from amp_migrate.server.found import Found
from amp_migrate.server.projects import Projects, WarmLinter
from amp_migrate.server.worker import Worker

_PAUSE = 0.2
"""Seconds without a key before a text is judged: less would judge words half typed, more is felt."""


@dataclass(eq=False)
class Document:
    """One open file.

    Attributes:
        text: as the editor has it.
        version: the editor's number of that text.
        found: what was found last, maybe in an earlier text.
        standing: what was found in the last text that is Python.
        linter: that found it.
        published: the version of which the editor was told last.
    """

    uri: str
    path: Path
    text: str
    version: int | None
    found: Found | None = None
    standing: Found | None = None
    linter: WarmLinter | None = None
    published: int | None = None
    timer: asyncio.TimerHandle | None = None
    running: asyncio.Task[None] | None = None
    running_on: str | None = None

    def hold(self) -> None:
        """Let no pause in typing start anything."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Documents:
    """All open files.

    Args:
        projects: which settings hold for each.
        worker: judges them, one after the other.
        publish: is given a file when there is something new to show.
        complain: is given what stands in the way of judging.
    """

    def __init__(
        self,
        projects: Projects,
        worker: Worker,
        publish: Callable[[Document], None],
        complain: Callable[[str], None],
    ) -> None:
        self._projects = projects
        self._worker = worker
        self._publish = publish
        self._complain = complain
        self._open: dict[str, Document] = {}

    def get(self, uri: str) -> Document | None:
        """Return an open file."""
        return self._open.get(uri)

    def open(self, document: Document) -> None:
        """Take a file in, and judge it."""
        self._open[document.uri] = document
        self.judge_now(document)

    def close(self, uri: str) -> None:
        """Let go of a file."""
        document = self._open.pop(uri, None)
        if document is not None:
            document.hold()

    def change(self, document: Document, text: str, version: int | None) -> None:
        """Take in what was typed, and judge it when typing pauses."""
        document.text, document.version = text, version
        document.hold()
        document.timer = asyncio.get_running_loop().call_later(_PAUSE, self.judge_now, document)

    def forget_files(self) -> None:
        """Have everything read anew that was read of other files."""
        for document in self._open.values():
            if document.linter is not None:
                document.linter.forget_files()

    def judge_all(self) -> None:
        """Judge everything anew: settings may have changed."""
        for document in self._open.values():
            self.judge_again(document)

    def judge_users_of(self, path: Path) -> None:
        """Judge the files anew whose findings rest on another one."""
        name = str(path)
        for document in self._open.values():
            if document.found and name in document.found.dependencies:
                self.judge_again(document)

    def judge_again(self, document: Document) -> None:
        """Have a file judged although its text is known."""
        # What is under way may rest on what has changed.
        document.found = document.running_on = None
        self.judge_now(document)

    def judge_now(self, document: Document) -> None:
        """Have a file judged, unless that is done or under way."""
        document.hold()
        if document.found is not None and document.found.text == document.text:
            if document.published != document.version:
                self._show(document)
            return
        if document.running is None or document.running.done() or document.running_on != document.text:
            document.running_on = document.text
            document.running = asyncio.ensure_future(self._judge(document))

    async def judged(self, document: Document) -> Found | None:
        """Return what is found in the text as it is now; None if nothing can be told of it."""
        self.judge_now(document)
        while document.running is not None and not document.running.done():
            # Whoever asks may lose interest; what is on its way is of use to others.
            await asyncio.shield(document.running)
        found = document.found
        return found if found is not None and found.text == document.text else None

    async def _judge(self, document: Document) -> None:
        text = document.text

        def work() -> tuple[WarmLinter, Found]:
            linter = self._projects.linter(document.path)
            return linter, linter.judge(document.path, text, document.standing)

        try:
            linter, found = await asyncio.wrap_future(self._worker.submit(work))
        except UserError as error:
            document.found = None
            self._complain(str(error))
            return
        except Exception as error:
            self._complain(f"internal error: {type(error).__name__}: {error}; please report{where(error)}")
            return
        if document.text != text or self._open.get(document.uri) is not document:
            # What has been typed since is judged by itself.
            return
        if found.problem is not None and found.problem.line is None:
            self._complain(str(found.problem))
        document.linter, document.found = linter, found
        if found.judged:
            document.standing = found
        self._show(document)

    def _show(self, document: Document) -> None:
        document.published = document.version
        self._publish(document)
