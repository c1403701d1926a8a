"""An editor's side of the protocol: pygls's client, and a server in a process of its own."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path

from lsprotocol import types
from pygls.lsp.client import BaseLanguageClient

PATIENCE = 120
"""Seconds after which a server that does not answer hangs."""

PROGRAM = ("-c", "from amp_migrate.commands.lint import main; main(prog_name='amp-lint')")


class EditorClient(BaseLanguageClient):
    """Notes what the server shows."""

    def __init__(self):
        super().__init__("editor", "1")
        self.shown: dict[str, types.PublishDiagnosticsParams] = {}
        self.messages: list[str] = []
        self.news = asyncio.Condition()
        self.registered = []
        self.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)(partial(self._publish))
        self.feature(types.WINDOW_SHOW_MESSAGE)(partial(self._message))
        self.feature(types.CLIENT_REGISTER_CAPABILITY)(partial(self._register))

    async def _publish(self, params: types.PublishDiagnosticsParams) -> None:
        async with self.news:
            self.shown[params.uri] = params
            self.news.notify_all()

    async def _message(self, params: types.ShowMessageParams) -> None:
        async with self.news:
            self.messages.append(params.message)
            self.news.notify_all()

    def _register(self, params: types.RegistrationParams) -> None:
        self.registered += params.registrations

    async def until(self, holds):
        """Wait until ``holds()``."""
        async with self.news:
            await asyncio.wait_for(self.news.wait_for(holds), PATIENCE)

    async def start(self, *folders: Path, capabilities=None, program=PROGRAM):
        await self.start_io(sys.executable, *program, "server", cwd=folders[0])
        params = types.InitializeParams(
            capabilities or types.ClientCapabilities(),
            workspace_folders=[types.WorkspaceFolder(folder.as_uri(), folder.name) for folder in folders],
        )
        self.answer = await self.initialize_async(params)
        self.initialized(types.InitializedParams())

    async def finish(self):
        """End the server as an editor does, and return what it wrote to standard error."""
        server = self._server
        await asyncio.wait_for(self.shutdown_async(None), PATIENCE)
        self.exit(None)
        written = await asyncio.wait_for(server.stderr.read(), PATIENCE)
        await asyncio.wait_for(self.stop(), PATIENCE)
        return written.decode(), server.returncode

    # ---- what people do ------------------------------------------------------------------------------------------

    def open(self, path: Path, text: str, version: int = 1) -> str:
        uri = path.as_uri()
        item = types.TextDocumentItem(uri, types.LanguageKind.Python, version, text)
        self.text_document_did_open(types.DidOpenTextDocumentParams(item))
        return uri

    def type(self, uri: str, text: str, version: int) -> None:
        document = types.VersionedTextDocumentIdentifier(version, uri)
        change = types.TextDocumentContentChangeWholeDocument(text)
        self.text_document_did_change(types.DidChangeTextDocumentParams(document, [change]))

    def save(self, uri: str) -> None:
        self.text_document_did_save(types.DidSaveTextDocumentParams(types.TextDocumentIdentifier(uri)))

    async def diagnostics(self, uri: str, version: int | None = 1) -> list[types.Diagnostic]:
        """Return what is shown of that version."""
        await self.until(lambda: uri in self.shown and self.shown[uri].version == version)
        return list(self.shown[uri].diagnostics)

    async def codes(self, uri: str, version: int | None = 1) -> list[str | int | None]:
        return [item.code for item in await self.diagnostics(uri, version)]

    async def actions(self, uri: str, line: int, only=None):
        span = types.Range(types.Position(line, 0), types.Position(line, 10_000))
        params = types.CodeActionParams(types.TextDocumentIdentifier(uri), span, types.CodeActionContext([], only=only))
        return await asyncio.wait_for(self.text_document_code_action_async(params), PATIENCE) or []
