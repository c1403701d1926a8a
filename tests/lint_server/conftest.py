from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from importlib.util import find_spec

import pytest

# An environment without the extra; that development has it is seen in tests/test_fences.py.
collect_ignore = [] if find_spec("pygls") else ["test_server.py", "test_edits.py"]


@pytest.fixture
def folder(tmp_path, tmp_path_factory, monkeypatch):
    """An empty project; what the server keeps lies elsewhere."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    return tmp_path.resolve()


@pytest.fixture
def editor(folder):
    """Start a server in the project for as long as ``async with`` lasts, and see that it ends well."""
    from editor_client import EditorClient

    @asynccontextmanager
    async def started(*folders, **options):
        client = EditorClient()
        await client.start(*(folders or (folder,)), **options)
        yield client
        assert await client.finish() == ("", 0)

    return started


@pytest.fixture
def run():
    """Run a conversation; one that hangs fails."""
    from editor_client import PATIENCE

    return lambda conversation: asyncio.run(asyncio.wait_for(conversation, 4 * PATIENCE))
