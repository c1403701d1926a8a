"""The answers to what an editor asks."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path

from amp_migrate.lint.catalogue import UNUSED_SUPPRESSION, load_rules
from amp_migrate.lint.diagnostics import Diagnostic, Replacement
from amp_migrate.server import actions, messages
from amp_migrate.server.documents import Document, Documents
from amp_migrate.server.found import Found
from amp_migrate.server.positions import Lines
from amp_migrate.server.projects import Projects
from amp_migrate.server.worker import Worker

_Result = TypeVar("_Result")

_SCHEMES = ("file", "untitled")
_SUFFIXES = (".py", ".pyi", ".pyw")
_WATCHED = ("**/pyproject.toml", "**/*.py")
_log = logging.getLogger("amp_migrate.server")


class _Server(LanguageServer):
    """The protocol's side; its own mistakes are noted and shown to nobody."""

    def report_server_error(self, error: Exception, source: Any) -> None:
        """Note what a message of the editor could not be understood for."""
        _log.warning("%s", error)


class Editor:
    """One editor and its open files.

    Args:
        worker: does what takes time.
        config: a file of settings for all files, as ``--config`` names it.
    """

    def __init__(self, worker: Worker, config: Path | None) -> None:
        self._worker = worker
        self.server = _Server("amp-lint", _version(), text_document_sync_kind=types.TextDocumentSyncKind.Full)
        self.documents = Documents(Projects(config), worker, self._publish, self._complain)
        self.rules = {rule.code: rule for rule in load_rules()}
        self._pages = messages.RulePages(self.rules)
        self._complaints: set[str] = set()
        self._register()

    def _register(self) -> None:
        def on(feature: str, answer: Callable[..., Any], options: Any = None) -> None:
            self.server.feature(feature, options)(_guarded(answer))

        on(types.INITIALIZED, self.initialized)
        on(types.TEXT_DOCUMENT_DID_OPEN, self.did_open)
        on(types.TEXT_DOCUMENT_DID_CHANGE, self.did_change)
        on(types.TEXT_DOCUMENT_DID_SAVE, self.did_save)
        on(types.TEXT_DOCUMENT_DID_CLOSE, self.did_close)
        on(types.WORKSPACE_DID_CHANGE_WATCHED_FILES, self.did_change_watched_files)
        on(types.TEXT_DOCUMENT_HOVER, self.hover)
        kinds = [types.CodeActionKind.QuickFix, types.CodeActionKind.SourceFixAll, messages.FIX_ALL]
        on(types.TEXT_DOCUMENT_CODE_ACTION, self.code_action, types.CodeActionOptions(kinds, resolve_provider=True))
        on(types.CODE_ACTION_RESOLVE, self.resolve)

    # ---- files ---------------------------------------------------------------------------------------------------

    def initialized(self, params: types.InitializedParams) -> None:
        """Ask to be told of changes outside of the editor."""
        workspace = self.server.client_capabilities.workspace
        watching = workspace.did_change_watched_files if workspace else None
        if watching is None or not watching.dynamic_registration:
            return
        watchers = [types.FileSystemWatcher(pattern) for pattern in _WATCHED]
        options = types.DidChangeWatchedFilesRegistrationOptions(watchers)
        wish = types.Registration("files", types.WORKSPACE_DID_CHANGE_WATCHED_FILES, options)
        self.server.client_register_capability(types.RegistrationParams([wish]))

    def did_open(self, params: types.DidOpenTextDocumentParams) -> None:
        """Judge a file that is opened."""
        item = params.text_document
        path = _path_of(item.uri)
        # Cells of a notebook alone say little, and what version control shows is nobody's to mend.
        if item.uri.partition(":")[0] not in _SCHEMES:
            return
        if item.language_id == "python" or path.suffix in _SUFFIXES:
            self.documents.open(Document(item.uri, path, item.text, item.version))

    def did_change(self, params: types.DidChangeTextDocumentParams) -> None:
        """Judge a text when typing pauses."""
        document = self.documents.get(params.text_document.uri)
        if document is not None:
            text = self.server.workspace.get_text_document(document.uri).source
            self.documents.change(document, text, params.text_document.version)

    def did_save(self, params: types.DidSaveTextDocumentParams) -> None:
        """Judge a saved file at once, and those that rest on it."""
        document = self.documents.get(params.text_document.uri)
        if document is not None:
            self.documents.judge_again(document)
        self._changed(_path_of(params.text_document.uri))

    def did_close(self, params: types.DidCloseTextDocumentParams) -> None:
        """Take the findings of a closed file away."""
        uri = params.text_document.uri
        if self.documents.get(uri) is not None:
            self.documents.close(uri)
            self.server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))

    def did_change_watched_files(self, params: types.DidChangeWatchedFilesParams) -> None:
        """Judge anew what rests on a file that something else changed."""
        if any(change.type != types.FileChangeType.Changed for change in params.changes):
            # What an import leads to may be another file now.
            self.documents.forget_files()
            self.documents.judge_all()
        for path in {_path_of(change.uri) for change in params.changes}:
            self._changed(path)

    def _changed(self, path: Path) -> None:
        if path.suffix == ".toml":
            self._complaints.clear()
            self.documents.judge_all()
        else:
            self.documents.judge_users_of(path)

    # ---- questions -----------------------------------------------------------------------------------------------

    async def hover(self, params: types.HoverParams) -> types.Hover | None:
        """Show the page of the rule that found something here."""
        document, found = await self._found(params.text_document.uri)
        if document is None or found is None:
            return None
        return messages.hover(found, self._lines(found), params.position, self.rules, self._reads_markdown())

    async def code_action(self, params: types.CodeActionParams) -> list[types.CodeAction]:
        """Offer fixes and suppressions."""
        document, found = await self._found(params.text_document.uri)
        # What is left of an earlier text cannot be mended in this one.
        if document is None or found is None or not found.judged:
            return []
        only = params.context.only
        offered: list[types.CodeAction] = []
        lines = self._lines(found)
        if _wanted(types.CodeActionKind.QuickFix, only):
            for item in messages.at(found, lines, params.range):
                offered += self._of_finding(document, item, lines)
        safe = [item for item in found.diagnostics if item.finding.fix and item.finding.fix.safety == "safe"]
        if safe and _wanted(messages.FIX_ALL, only):
            action = types.CodeAction("amp-lint: apply all safe fixes", messages.FIX_ALL)
            offered.append(_asked(action, document, "all"))
        if self._resolves_later():
            return offered
        done = [await self.resolve(action) for action in offered]
        return [action for action in done if action.edit is not None]

    def _of_finding(self, document: Document, item: Diagnostic, lines: Lines) -> list[types.CodeAction]:
        finding, fix = item.finding, item.finding.fix
        shown = [messages.diagnostic(item, lines, {})]
        quick, offered = types.CodeActionKind.QuickFix, []
        if fix is not None:
            unsafe = "" if fix.safety == "safe" else ", unsafe: read what it does"
            action = types.CodeAction(f"{fix.title} ({finding.code}{unsafe})", quick, shown, fix.safety == "safe")
            offered.append(_asked(action, document, "fix", item))
        if finding.code != UNUSED_SUPPRESSION.code:
            action = types.CodeAction(f"Suppress {finding.code} ({finding.name}) on this line", quick, shown)
            offered.append(_asked(action, document, "suppress", item))
        return offered

    async def resolve(self, action: types.CodeAction) -> types.CodeAction:
        """Return an action with its edit; without one where the text has changed since it was offered."""
        data = action.data if isinstance(action.data, dict) else {}
        document, found = await self._found(str(data.get("uri")))
        if document is None or found is None or document.version != data.get("version"):
            return action
        edits = await self._work(lambda: self._edits(document, found, data))
        if edits:
            action.edit = messages.workspace_edit(
                document.uri, document.version, edits, self._lines(found), self._knows_versions()
            )
        return action

    def _edits(self, document: Document, found: Found, data: dict[str, Any]) -> Sequence[Replacement]:
        """Return the edits of an action; called by the worker."""
        if data.get("what") == "all":
            return actions.all_safe_fixes(document.path, found, document.linter) if document.linter else ()
        item = next((item for item in found.diagnostics if _key(item) == data.get("finding")), None)
        if item is None:
            return ()
        return (
            actions.suppression(found, item)
            if data["what"] == "suppress"
            else actions.fix_of(document.path, found, item)
        )

    async def _work(self, work: Callable[[], Sequence[Replacement]]) -> Sequence[Replacement]:
        try:
            return await asyncio.wrap_future(self._worker.submit(work))
        except Exception as error:
            # A fix that cannot be carried out is none.
            _log.info("%s", error)
            return ()

    async def _found(self, uri: str) -> tuple[Document | None, Found | None]:
        document = self.documents.get(uri)
        return document, await self.documents.judged(document) if document is not None else None

    # ---- what the editor is shown, and what it knows -------------------------------------------------------------

    def _publish(self, document: Document) -> None:
        if document.found is None:
            return
        page = self._pages.of(document.found, document.linter.settings.cache_folder if document.linter else None)
        shown = messages.diagnostics(document.found, self._lines(document.found), page)
        self.server.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(document.uri, shown, document.version)
        )

    def _complain(self, text: str) -> None:
        """Show, once, what keeps files from being judged."""
        if text not in self._complaints:
            self._complaints.add(text)
            message = types.ShowMessageParams(types.MessageType.Error, f"amp-lint: {text}")
            self.server.window_show_message(message)

    def _lines(self, found: Found) -> Lines:
        return Lines(found.text, str(getattr(self._encoding(), "value", self._encoding())))

    def _encoding(self) -> Any:
        return self.server.server_capabilities.position_encoding or types.PositionEncodingKind.Utf16

    def _reads_markdown(self) -> bool:
        document = self.server.client_capabilities.text_document
        formats = document.hover.content_format if document and document.hover else None
        return formats is None or types.MarkupKind.Markdown in formats

    def _resolves_later(self) -> bool:
        document = self.server.client_capabilities.text_document
        support = document.code_action.resolve_support if document and document.code_action else None
        return support is not None and "edit" in support.properties

    def _knows_versions(self) -> bool:
        workspace = self.server.client_capabilities.workspace
        return bool(workspace and workspace.workspace_edit and workspace.workspace_edit.document_changes)


def _guarded(answer: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that answers nothing where ``answer`` breaks down: the next question may well be answered.

    pygls would send the traceback. It also leaves a mark on each function, which methods do not take.
    """
    if inspect.iscoroutinefunction(answer):

        @wraps(answer)
        async def patient(params: Any) -> Any:
            try:
                return await answer(params)
            except Exception:
                _log.exception("no answer")
                return None

        return patient

    @wraps(answer)
    def prompt(params: Any) -> Any:
        try:
            return answer(params)
        except Exception:
            _log.exception("no answer")
            return None

    return prompt


def _asked(action: types.CodeAction, document: Document, what: str, item: Diagnostic | None = None) -> types.CodeAction:
    """Return an action with what is needed to find its edit later."""
    action.data = {"uri": document.uri, "version": document.version, "what": what}
    if item is not None:
        action.data["finding"] = _key(item)
    return action


def _key(item: Diagnostic) -> list[Any]:
    span = item.finding.span
    return [item.finding.code, span.start.line, span.start.column, span.end.line, span.end.column]


def _wanted(kind: str, only: Sequence[str] | None) -> bool:
    """Whether an editor that asks for some kinds of actions asks for this one."""
    return only is None or any(kind == asked or kind.startswith(f"{asked}.") for asked in map(_text, only))


def _text(kind: object) -> str:
    return str(getattr(kind, "value", kind))


def _path_of(uri: str) -> Path:
    """Return where a file is, or for one without a place, where it would be."""
    path = to_fs_path(uri) if uri.startswith("file:") else None
    return Path(path) if path else Path.cwd() / "<untitled>"


def _version() -> str:
    try:
        return version("amp-migrate")
    except PackageNotFoundError:
        return "unknown"
