"""The server as editors see it: a client of the protocol and a process of its own."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest
from editor_client import PATIENCE
from lsprotocol import types
from pygls.exceptions import JsonRpcException

pytestmark = pytest.mark.heavy

MASK = """\
import torch


def scores(q, k, mask):
    s = torch.matmul(q, k)
    s = s.masked_fill(mask, -1e9)
    return torch.softmax(s, -1)
"""
OTHER = """\


def others(q, k, mask):
    t = torch.matmul(q, k)
    t = t.masked_fill(mask, -1e5)
    return torch.softmax(t, -1)
"""
MENDED = MASK.replace("-1e9", "torch.finfo(s.dtype).min")
LINE = 5


def with_edits(text: str, edit: types.WorkspaceEdit) -> str:
    """Return an ASCII text after the edits of one file."""
    if edit.document_changes:
        changes = edit.document_changes[0].edits
    else:
        (changes,) = edit.changes.values()
    lines = text.splitlines(keepends=True)
    for change in sorted(changes, key=lambda item: (item.range.start.line, item.range.start.character), reverse=True):
        start, end = change.range.start, change.range.end
        starts = [sum(map(len, lines[:number])) for number in range(len(lines) + 1)]
        text = "".join(lines)
        text = text[: starts[start.line] + start.character] + change.new_text + text[starts[end.line] + end.character :]
        lines = text.splitlines(keepends=True)
    return "".join(lines)


def test_what_is_found_is_shown_with_a_link_to_its_page(editor, folder, run):
    async def conversation():
        async with editor() as client:
            uri = client.open(folder / "a.py", MASK)
            (item,) = await client.diagnostics(uri)
            assert (item.code, item.source, item.severity) == ("AMP601", "amp-lint", types.DiagnosticSeverity.Error)
            start = MASK.splitlines()[LINE].index("-1e9")
            assert item.range == types.Range(types.Position(LINE, start), types.Position(LINE, start + 4))
            assert "does not fit in fp16" in item.message
            page = Path(url2pathname(urlsplit(item.code_description.href).path))
            assert page.read_text().startswith("# AMP601 const-overflow-fill\n")
            client.type(uri, MENDED, 2)
            assert await client.diagnostics(uri, 2) == []
            idle = client.open(folder / "b.py", "x = 1  # amp: ignore[AMP601]\n")
            (item,) = await client.diagnostics(idle)
            assert (item.code, item.tags) == ("AMP980", (types.DiagnosticTag.Unnecessary,))

    run(conversation())


def test_half_typed_text_keeps_what_stands_elsewhere_and_shows_the_syntax_error(editor, folder, run):
    async def conversation():
        async with editor() as client:
            uri = client.open(folder / "a.py", MASK + OTHER)
            assert await client.codes(uri) == ["AMP601", "AMP601"]
            typed = MASK + "\nmodel = torch.nn.Linear(3,\n\n" + OTHER
            client.type(uri, typed, 2)
            found = await client.diagnostics(uri, 2)
            assert [(item.code, item.range.start.line) for item in found[:2]] == [
                ("AMP601", LINE),
                ("AMP601", typed.splitlines().index("    t = t.masked_fill(mask, -1e5)")),
            ]
            assert [(item.code, item.message) for item in found[2:]] == [(None, "syntax error: '(' was never closed")]
            # What it would do to such a text is not known.
            assert await client.actions(uri, LINE) == []
            # The line that is being typed keeps nothing.
            client.type(uri, (MASK + OTHER).replace("(mask, -1e9)", "(mask, -1e9"), 3)
            found = await client.diagnostics(uri, 3)
            assert [item.code for item in found] == ["AMP601", None]
            assert found[0].range.start.line == (MASK + OTHER).splitlines().index("    t = t.masked_fill(mask, -1e5)")
            client.type(uri, MASK + OTHER, 4)
            assert await client.codes(uri, 4) == ["AMP601", "AMP601"]
            broken = client.open(folder / "b.py", "import torch\ndef f(:\n")
            assert await client.codes(broken) == [None]

    run(conversation())


def test_hover_shows_the_rules_page(editor, folder, run):
    async def conversation():
        async with editor() as client:
            uri = client.open(folder / "a.py", MASK)
            at = types.Position(LINE, MASK.splitlines()[LINE].index("-1e9") + 2)
            document = types.TextDocumentIdentifier(uri)
            shown = await client.text_document_hover_async(types.HoverParams(document, at))
            assert shown.contents.kind == types.MarkupKind.Markdown
            assert shown.contents.value.startswith("# AMP601 const-overflow-fill\n")
            assert "## What it does" in shown.contents.value
            elsewhere = types.HoverParams(document, types.Position(0, 0))
            assert await client.text_document_hover_async(elsewhere) is None

    run(conversation())


UNSAFE = """\
import torch


def scale(x):
    with torch.autocast("cuda"):
        h = torch.matmul(x, x)
        return h / (torch.amax(h) + 1e-8)
"""


def test_fixes_and_suppressions_are_offered_apart(editor, folder, run):
    async def conversation():
        async with editor() as client:
            uri = client.open(folder / "a.py", MASK)
            fix, suppress, everything = await client.actions(uri, LINE)
            assert "(AMP601)" in fix.title and fix.is_preferred and fix.kind == types.CodeActionKind.QuickFix
            assert [item.code for item in fix.diagnostics] == ["AMP601"]
            assert with_edits(MASK, fix.edit) == MENDED
            assert "Suppress AMP601" in suppress.title and not suppress.is_preferred
            suppressed = with_edits(MASK, suppress.edit)
            assert suppressed == MASK.replace("-1e9)", "-1e9)  # amp: ignore[AMP601]")
            assert everything.kind == "source.fixAll.amp-lint"
            assert with_edits(MASK, everything.edit) == MENDED
            client.type(uri, suppressed, 2)
            assert await client.codes(uri, 2) == []
            assert [item.kind for item in await client.actions(uri, 0)] == []
            unsafe = client.open(folder / "b.py", UNSAFE)
            assert await client.codes(unsafe) == ["AMP605"]
            fix, suppress = await client.actions(unsafe, 6)
            assert "unsafe" in fix.title and not fix.is_preferred
            assert await client.actions(unsafe, 6, only=["source.fixAll"]) == []
            assert [item.title for item in await client.actions(uri, LINE, only=["refactor"])] == []

    run(conversation())


def test_everything_is_mended_as_by_the_command(editor, folder, run):
    text = "x = 1  # amp: ignore[AMP601]\n" + MASK + OTHER

    async def conversation():
        async with editor() as client:
            uri = client.open(folder / "a.py", text)
            assert await client.codes(uri) == ["AMP980", "AMP601", "AMP601"]
            (action,) = await client.actions(uri, 3, only=["source.fixAll"])
            mended = with_edits(text, action.edit)
            assert mended == "x = 1\n" + MENDED + OTHER.replace("-1e5", "torch.finfo(t.dtype).min")
            client.type(uri, text.replace("\n", "\r\n"), 2)
            (action,) = await client.actions(uri, 3, only=["source.fixAll.amp-lint"])
            assert all("\n" not in edit.new_text.replace("\r\n", "") for edit in action.edit.changes[uri])

    run(conversation())


def test_an_editor_that_asks_later_gets_the_edit_then_and_for_that_text_only(editor, folder, run):
    resolving = types.ClientCodeActionResolveOptions(properties=["edit"])
    capabilities = types.ClientCapabilities(
        text_document=types.TextDocumentClientCapabilities(
            code_action=types.CodeActionClientCapabilities(resolve_support=resolving)
        ),
        workspace=types.WorkspaceClientCapabilities(
            workspace_edit=types.WorkspaceEditClientCapabilities(document_changes=True)
        ),
    )

    async def conversation():
        async with editor(capabilities=capabilities) as client:
            uri = client.open(folder / "a.py", MASK)
            offered = await client.actions(uri, LINE)
            assert [action.edit for action in offered] == [None, None, None]
            resolved = await client.code_action_resolve_async(offered[0])
            assert with_edits(MASK, resolved.edit) == MENDED
            assert resolved.edit.document_changes[0].text_document.version == 1
            client.type(uri, "\n" + MASK, 2)
            late = await client.code_action_resolve_async(offered[0])
            assert late.edit is None

    run(conversation())


@pytest.mark.parametrize(("encoding", "wide"), [(None, 2), ("utf-8", 4), ("utf-32", 1)])
def test_columns_are_counted_as_the_editor_counts(editor, folder, run, encoding, wide):
    text = MASK.replace("mask, -1e9", "{'\N{PILE OF POO}': mask}['\N{PILE OF POO}'], -1e9")
    general = types.GeneralClientCapabilities(position_encodings=[encoding] if encoding else None)

    async def conversation():
        async with editor(capabilities=types.ClientCapabilities(general=general)) as client:
            uri = client.open(folder / "a.py", text)
            (item,) = await client.diagnostics(uri)
            assert item.range.start.character == text.splitlines()[LINE].index("-1e9") + 2 * (wide - 1)
            place = types.HoverParams(types.TextDocumentIdentifier(uri), item.range.start)
            assert (await client.text_document_hover_async(place)).range == item.range

    run(conversation())


def test_settings_are_those_of_the_command_line_and_are_read_anew(editor, folder, run):
    (folder / "pyproject.toml").write_text("[tool.amp-lint]\nignore = ['AMP601']\nexclude = ['third_party/']\n")
    (folder / "third_party").mkdir()

    async def conversation():
        async with editor() as client:
            uri = client.open(folder / "a.py", MASK)
            assert await client.codes(uri) == []
            (folder / "pyproject.toml").write_text("[tool.amp-lint]\nexclude = ['third_party/']\n")
            changed = types.FileEvent((folder / "pyproject.toml").as_uri(), types.FileChangeType.Changed)
            client.workspace_did_change_watched_files(types.DidChangeWatchedFilesParams([changed]))
            await client.until(lambda: client.shown[uri].diagnostics)
            excluded = client.open(folder / "third_party" / "b.py", MASK)
            assert await client.codes(excluded) == []
            # An editor that watches no files finds out with the next key.
            (folder / "pyproject.toml").write_text("[tool.amp-lint]\nmin-severity = 'error'\nselect = ['AMP7']\n")
            client.type(uri, MASK + "\n", 2)
            assert await client.codes(uri, 2) == []
            (folder / "pyproject.toml").write_text("[tool.amp-lint]\nselekt = ['AMP7']\n")
            client.type(uri, MASK, 3)
            await client.until(lambda: client.messages)
            assert "unknown key 'selekt' in [tool.amp-lint]; did you mean 'select'?" in client.messages[0]
            (folder / "pyproject.toml").unlink()
            client.type(uri, MASK + "\n", 4)
            assert await client.codes(uri, 4) == ["AMP601"]
            assert len(client.messages) == 1

    run(conversation())


def test_each_project_has_its_own_settings(editor, folder, run):
    one, two = folder / "one", folder / "two"
    for place, level in ((one, "O1"), (two, "O3")):
        place.mkdir()
        (place / "pyproject.toml").write_text(f"[tool.amp-lint]\nopt-level = '{level}'\nbaseline = 'known.json'\n")
        (place / "known.json").write_text('{"version": 1, "mode": "O1 fp16 cuda", "files": {}}')
    known = '{"version": 1, "mode": "O1 fp16 cuda", "files": {"a.py": [{"code": "AMP601", "line": "%s", "count": 1}]}}'
    text = "import torch\n\n\ndef f(x, m):\n    return x.masked_fill(m, -1e9)\n"

    async def conversation():
        async with editor(one, two) as client:
            autocast = client.open(one / "a.py", MASK)
            half = client.open(two / "a.py", text)
            (first,), (second,) = await client.diagnostics(autocast), await client.diagnostics(half)
            assert (first.data["mode"], second.data["mode"]) == ("O1 fp16 cuda", "O3 fp16 cuda")
            (two / "known.json").write_text(known % "return x.masked_fill(m, -1e9)")
            client.type(half, text + "\n", 2)
            assert await client.codes(half, 2) == []

    run(conversation())


def test_a_change_of_another_file_is_noticed(editor, folder, run):
    helper = folder / "helper.py"
    helper.write_text("FILL = -1e4\n")
    text = MASK.replace("import torch\n", "import torch\nfrom helper import FILL\n").replace("-1e9", "FILL")

    async def conversation():
        async with editor() as client:
            uri = client.open(folder / "a.py", text)
            assert await client.codes(uri) == []
            other = client.open(helper, helper.read_text())
            helper.write_text("FILL = -1e9\n")
            client.save(other)
            await client.until(lambda: [item.code for item in client.shown[uri].diagnostics] == ["AMP601"])

    run(conversation())


def test_a_file_that_appears_is_noticed(editor, folder, run):
    text = MASK.replace("import torch\n", "import torch\nfrom helper import FILL\n").replace("-1e9", "FILL")
    watching = types.DidChangeWatchedFilesClientCapabilities(dynamic_registration=True)
    workspace = types.WorkspaceClientCapabilities(did_change_watched_files=watching)

    async def conversation():
        async with editor(capabilities=types.ClientCapabilities(workspace=workspace)) as client:
            uri = client.open(folder / "a.py", text)
            assert await client.codes(uri) == []
            (wish,) = client.registered
            assert wish.method == "workspace/didChangeWatchedFiles"
            (folder / "helper.py").write_text("FILL = -1e9\n")
            created = types.FileEvent((folder / "helper.py").as_uri(), types.FileChangeType.Created)
            client.workspace_did_change_watched_files(types.DidChangeWatchedFilesParams([created]))
            await client.until(lambda: [item.code for item in client.shown[uri].diagnostics] == ["AMP601"])

    run(conversation())


def test_results_that_are_not_to_be_kept_leave_no_pages(editor, folder, run):
    (folder / "pyproject.toml").write_text("[tool.amp-lint]\ncache = false\n")

    async def conversation():
        async with editor() as client:
            (item,) = await client.diagnostics(client.open(folder / "a.py", MASK))
            assert item.code_description is None
            (folder / "pyproject.toml").write_text("[tool.amp-lint]\ncache-dir = 'kept'\n")
            (item,) = await client.diagnostics(client.open(folder / "b.py", MASK))
            assert item.code_description.href == (folder / "kept/pages/AMP601.md").as_uri()

    run(conversation())


def test_a_question_that_is_taken_back_disturbs_nothing(editor, folder, run):
    async def conversation():
        async with editor() as client:
            uri = client.open(folder / "a.py", MASK)
            span = types.Range(types.Position(LINE, 0), types.Position(LINE, 99))
            params = types.CodeActionParams(types.TextDocumentIdentifier(uri), span, types.CodeActionContext([]))
            answer = client.protocol.send_request("textDocument/codeAction", params, msg_id="taken-back")
            client.cancel_request(types.CancelParams("taken-back"))
            try:
                # It may have been answered before.
                await asyncio.wait_for(asyncio.wrap_future(answer), PATIENCE)
            except JsonRpcException as error:
                assert "cancel" in str(error)
            assert await client.codes(uri) == ["AMP601"]
            assert len(await client.actions(uri, LINE)) == 3

    run(conversation())


def test_what_is_no_python_or_has_no_place_is_dealt_with(editor, folder, run):
    async def conversation():
        async with editor() as client:
            notes = types.TextDocumentItem((folder / "a.md").as_uri(), "markdown", 1, MASK)
            client.text_document_did_open(types.DidOpenTextDocumentParams(notes))
            unnamed = types.TextDocumentItem("untitled:Untitled-1", types.LanguageKind.Python, 1, MASK)
            client.text_document_did_open(types.DidOpenTextDocumentParams(unnamed))
            assert await client.codes("untitled:Untitled-1") == ["AMP601"]
            cell = types.TextDocumentItem("vscode-notebook-cell:/a.ipynb#W0", types.LanguageKind.Python, 1, MASK)
            client.text_document_did_open(types.DidOpenTextDocumentParams(cell))
            assert await client.actions(cell.uri, LINE) == []
            assert notes.uri not in client.shown and cell.uri not in client.shown
            assert await client.actions(notes.uri, LINE) == []
            closed = types.DidCloseTextDocumentParams(types.TextDocumentIdentifier("untitled:Untitled-1"))
            client.text_document_did_close(closed)
            assert await client.codes("untitled:Untitled-1", None) == []
            null = client.open(folder / "b.py", "import torch\n\0")
            assert await client.codes(null) == [None]

    run(conversation())


STANDIN = (str(Path(__file__).parents[1] / "lint_cli/lint_standin.py"),)
"""The command with an analysis that can be made to misbehave."""


def test_a_text_that_takes_too_long_is_given_up(editor, folder, run):
    (folder / "pyproject.toml").write_text("[tool.amp-lint]\ntimeout = 0.2\n")

    async def conversation():
        async with editor(program=STANDIN) as client:
            uri = client.open(folder / "a.py", "fill(x, 1)\nhalf(x)\n")
            assert await client.codes(uri) == ["AMP601", "AMP701"]
            client.type(uri, "fill(x, 1)\nSLOW\n", 2)
            # What stands on the other lines is still shown.
            assert await client.codes(uri, 2) == ["AMP601"]
            assert "took longer than 0.2 s" in client.messages[0]
            client.type(uri, "fill(x, 1)\nfill(y, 1)\n", 3)
            assert await client.codes(uri, 3) == ["AMP601", "AMP601"]

    run(conversation())


def test_mistakes_of_the_analysis_are_named_and_end_nothing(editor, folder, run):
    async def conversation():
        async with editor(program=STANDIN) as client:
            uri = client.open(folder / "a.py", "BOOM\n")
            assert await client.codes(uri) == []
            assert "internal error: KeyError: 'no such role'; please report" in client.messages[0]
            assert "Traceback" not in client.messages[0]
            # A fix that would break the text is not offered.
            client.type(uri, "y = broken(x)\n", 2)
            assert await client.codes(uri, 2) == ["AMP601"]
            assert ["Suppress" in action.title for action in await client.actions(uri, 0)] == [True]

    run(conversation())


@pytest.mark.parametrize("end", ["exit", "interrupt"])
def test_an_editor_that_goes_away_does_not_leave_a_server_at_work(editor, folder, run, end):
    (folder / "pyproject.toml").write_text("[tool.amp-lint]\ntimeout = 0\n")

    async def conversation():
        async with editor(program=STANDIN) as client:
            client.open(folder / "a.py", "SLOW\n")
            started = folder / "slow.started"
            while not started.exists():
                await asyncio.sleep(0.02)
            if end == "exit":
                client._server.stdin.close()
            else:
                client._server.send_signal(signal.SIGINT)
            status = await asyncio.wait_for(client._server.wait(), PATIENCE)
            assert status == (0 if end == "exit" else 130)
            assert b"Traceback" not in await client._server.stderr.read()
            client.finish = ended

    async def ended():
        return "", 0

    run(conversation())


def test_nonsense_is_passed_over_and_the_end_of_input_ends_the_server(editor, folder, run):
    async def conversation():
        async with editor() as client:
            for body in (b"{", b'{"jsonrpc": "2.0", "method": "textDocument/didOpen", "params": {}}', b"[1]"):
                client._server.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
            uri = client.open(folder / "a.py", MASK)
            assert await client.codes(uri) == ["AMP601"]
            client._server.stdin.close()
            assert await asyncio.wait_for(client._server.wait(), PATIENCE) == 0
            client.finish = ended

    async def ended():
        return "", 0

    run(conversation())


def test_after_many_changes_the_last_text_is_shown(editor, folder, run):
    async def conversation():
        async with editor() as client:
            uri = client.open(folder / "a.py", MASK)
            for version in range(2, 40):
                client.type(uri, MASK + "#" * version, version)
            client.type(uri, MASK, 40)
            assert await client.codes(uri, 40) == ["AMP601"]

    run(conversation())
