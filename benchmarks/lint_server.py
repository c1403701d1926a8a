"""Time from a changed text to the answer of ``amp-lint server``, as an editor feels it.

    python benchmarks/lint_server.py FILE... [--changes 20]

A server is started for each file. Another line is typed at its end, again and again, and each time the page of a rule
is asked for, which the server answers once that text is judged. The processor's time of the server counts, as the
machine may be busy: for its start, up to the first answer, and the median and the longest of the later ones; beside it
stands the median by the clock on the wall. The pause that the server waits for after a key, before it shows what it
finds by itself, is in none of them. Prints the table of ``lint_cpu.md``; needs Linux.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import sys
import time
from pathlib import Path

from lsprotocol import types
from processes import head
from pygls.lsp.client import BaseLanguageClient

SERVER = [str(Path(sys.executable).with_name("amp-lint")), "server"]


def processor(pid: int) -> float:
    """Seconds of the processor that a process has had, to the nanosecond where the system tells."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


async def measured(path: Path, changes: int) -> tuple[float, float, list[float], list[float]]:
    """Seconds for the start of the server, for the first answer, and for each later one, then those by the clock."""
    text, uri = path.read_text(encoding="utf-8"), path.resolve().as_uri()
    client = BaseLanguageClient("benchmark", "1")
    await client.start_io(*SERVER)
    await client.initialize_async(types.InitializeParams(types.ClientCapabilities()))
    client.initialized(types.InitializedParams())
    pid = client._server.pid
    there = processor(pid)
    question = types.HoverParams(types.TextDocumentIdentifier(uri), types.Position(0, 0))
    item = types.TextDocumentItem(uri, types.LanguageKind.Python, 0, text)
    client.text_document_did_open(types.DidOpenTextDocumentParams(item))
    await client.text_document_hover_async(question)
    first = processor(pid)
    seconds, waited = [], []
    for version in range(1, changes + 1):
        text += f"\nline_{version} = {version}\n"
        document = types.VersionedTextDocumentIdentifier(version, uri)
        change = types.TextDocumentContentChangeWholeDocument(text)
        before, typed = processor(pid), time.perf_counter()
        client.text_document_did_change(types.DidChangeTextDocumentParams(document, [change]))
        await client.text_document_hover_async(question)
        waited.append(time.perf_counter() - typed)
        seconds.append(processor(pid) - before)
    await client.shutdown_async(None)
    client.exit(None)
    await client.stop()
    return there, first - there, seconds, waited


def row(path: Path, changes: int) -> str:
    """A line of the table."""
    start, first, later, waited = asyncio.run(measured(path, changes))
    lines = path.read_bytes().count(b"\n")
    numbers = (start, first, statistics.median(later), max(later), statistics.median(waited))
    return f"| {path.name} | {lines:,} | " + " | ".join(f"{1000 * seconds:.0f} ms" for seconds in numbers) + " |"


def main() -> None:
    logging.getLogger("pygls").setLevel(logging.CRITICAL)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--changes", type=int, default=20)
    arguments = parser.parse_args()
    machine = head([f"{len(arguments.files)} files"], arguments.changes)
    print(machine.replace(f"best of {arguments.changes} runs", f"{arguments.changes} changes each"))
    print("| file | lines | start | first | then | at most | by the clock |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for path in arguments.files:
        print(row(path, arguments.changes), flush=True)


if __name__ == "__main__":
    main()
