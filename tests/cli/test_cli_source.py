"""Reading files as Python reads them, and giving them back unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest
from amp_rules.source.text import (
    SourceError,
    SourceFile,
    parse_source,
    read_source,
    source_from_bytes,
)
from hypothesis import given
from hypothesis import strategies as st

PATH = Path("train.py")


def failure(data: bytes) -> SourceError:
    with pytest.raises(SourceError) as caught:
        parse_source(source_from_bytes(data, PATH))
    return caught.value


@pytest.mark.parametrize(
    ("data", "encoding", "text"),
    [
        (b"", "utf-8", ""),
        ("x = '中'\n".encode(), "utf-8", "x = '中'\n"),
        (b"\xef\xbb\xbfx = 1\r\n", "utf-8-sig", "x = 1\r\n"),
        ("# coding: gbk\nx = '中'".encode("gbk"), "gbk", "# coding: gbk\nx = '中'"),
        (
            b"#!/bin/x\n# -*- coding: latin-1 -*-\n'\xe9'",
            "iso-8859-1",
            "#!/bin/x\n# -*- coding: latin-1 -*-\n'é'",
        ),
        (b"#!/bin/x\r# coding: latin-1\r'\xe9'", "iso-8859-1", "#!/bin/x\r# coding: latin-1\r'é'"),
    ],
)
def test_encoding_is_found_as_python_finds_it(data, encoding, text):
    source = source_from_bytes(data, PATH)
    assert (source.encoding, source.text) == (encoding, text)
    assert source.encode(source.text) == data


@given(
    text=st.text(st.sampled_from("ab #'\n\r\f\v\u2028\x1c中é\t")),
    codec=st.sampled_from(["utf-8", "utf-8-sig", "gbk", "shift_jis", "iso-8859-1"]),
)
def test_bytes_survive_a_round_trip(text, codec):
    try:
        data = (f"# coding: {codec.removesuffix('-sig')}\n" + text).encode(codec)
    except UnicodeEncodeError:
        return
    source = source_from_bytes(data, PATH)
    assert source.encode(source.text) == data
    changed = source.text + "x = 1\n"
    again = source_from_bytes(source.encode(changed), PATH)
    assert (again.text, again.encoding) == (changed, source.encoding)


@pytest.mark.parametrize(
    ("data", "line", "words"),
    [
        (b"x = 1\ny = '\xe9'\n", 2, "declares no encoding"),
        (b"# coding: utf-8\n\n'\xe9'", 3, "declares UTF-8"),
        (b"# coding: ascii\n'\xe9'", 2, "declares ASCII"),
        (b"# coding: klingon\n", 1, "unknown encoding: klingon"),
        (b"# coding: rot13\n", 1, "cannot be read as rot13"),
        (b"# coding: hex\n", 1, "cannot be read as hex"),
        (b"x = 1\n\0", 2, "null bytes"),
        (b"\xff\xfex\0", 1, "UTF-16"),
        (b"x = (\n1", 1, "syntax error"),
        (b"a\rb\rdef (:", 3, "syntax error"),
        (b"(" * 400 + b")" * 400, 1, "nested"),
        (b"x" + b"[0]" * 100_000, None, "nested too deeply"),
    ],
)
def test_what_is_no_python_is_named_with_its_line(data, line, words):
    error = failure(data)
    assert error.line == line
    assert words in error.message
    assert str(error).startswith("train.py")


@pytest.mark.parametrize(
    "statement",
    [
        "print 'loss', loss",
        "print loss",
        "print('%d' % x), y; print x",
        "try:\n    pass\nexcept IOError, e:\n    pass",
        "raise ValueError, 'no'",
        "exec 'x = 1'",
        "x = 10L",
        "x = a <> b",
        "mode = 0777",
        "x = `y`",
    ],
)
def test_python_2_is_recognised(statement):
    assert failure(f"import torch\n{statement}\n".encode()).message == "Python 2: convert with 2to3 first"


@pytest.mark.parametrize("statement", ["print(x", "x = = 1", "def f(:", "x = 'unclosed", "  indented = 1"])
def test_an_ordinary_syntax_error_is_not_called_python_2(statement):
    assert failure(statement.encode()).message.startswith("syntax error")


def test_a_character_outside_the_encoding_is_refused_with_its_line():
    source = source_from_bytes(b"# coding: latin-1\nx = 1\n", PATH)
    with pytest.raises(SourceError) as caught:
        source.encode("# coding: latin-1\nx = '中'\n")
    assert caught.value.line == 2
    assert "iso-8859-1" in caught.value.message


def test_unreadable_paths_are_refused_in_words(tmp_path):
    for path, words in [(tmp_path / "none.py", "no such file"), (tmp_path, "directory")]:
        with pytest.raises(SourceError, match=words):
            read_source(path)


def test_warnings_about_the_users_strings_stay_silent(recwarn):
    parse_source(SourceFile(PATH, b"", "pattern = '\\d'\n", "utf-8"))
    assert not recwarn.list


def test_a_very_large_file_is_refused_with_its_bound(tmp_path):
    file = tmp_path / "data.py"
    file.write_bytes(b"x = 1\n" * 333_333)
    assert read_source(file).text.startswith("x = 1")
    file.write_bytes(b"x = 1\n" * 333_334)
    with pytest.raises(SourceError, match="is larger than 2 MB, which is too much to be analysed"):
        read_source(file)
