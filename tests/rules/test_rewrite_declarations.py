"""A rewrite that is declared wrongly is refused when it is loaded, with a message for its author."""

from __future__ import annotations

import importlib
import re
import sys

import pytest
from amp_rules.plan.rule import EVERY_OTHER
from amp_rules.rewrites import all_rules, of_apex, of_steps
from amp_rules.rewrites.loading import HEADINGS, Misdeclared, load

PAGE = "Do something.\n\n" + "\n".join(f"## {heading}\nhttps://example.org says so.\n" for heading in HEADINGS)
FILE = '''"""{page}"""

from amp_rules.plan.rule import EVERY_OTHER, Rule

RULE = Rule("{code}", "{name}", "{message}", "precision"{more})


def changes(context):
    yield from ()
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Write the files of a package of rewrites, and import it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []

    def make(files, head='CODES = ("AMP1",)\n'):
        name = f"rewrites_of_a_test_{len(made)}"
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(head)
        for file, text in files.items():
            (tmp_path / name / f"{file}.py").write_text(text)
        importlib.invalidate_caches()
        made.append(name)
        return importlib.import_module(name)

    yield make
    for name in [item for item in sys.modules if item.split(".")[0] in made]:
        del sys.modules[name]


def declared(code="AMP101", name="one-thing", message="It is done.", more="", page=PAGE):
    return FILE.format(code=code, name=name, message=message, more=more, page=page)


def refused(made) -> str:
    with pytest.raises(Misdeclared) as caught:
        load(made)
    return re.sub(r"rewrites_of_a_test_0\b", "FOLDER", str(caught.value))


def test_what_is_declared_as_it_must_be_is_found_with_its_page(folder):
    (found,) = load(folder({"one": declared()}))
    assert (found.rule.code, found.rule.page, found.reasons) == ("AMP101", PAGE, None)
    assert list(found.changes(None)) == []


def test_a_file_without_a_rule(folder):
    assert refused(folder({"one": "def changes(context): ..."})) == (
        "FOLDER.one: declare `RULE = Rule(code, name, message, unit)`"
    )


@pytest.mark.parametrize("body", ["", "changes = None", "def changes():\n    yield"])
def test_a_file_without_changes(body, folder):
    text = declared().partition("\ndef changes")[0] + body
    assert refused(folder({"one": text})) == "FOLDER.one: define `changes(context)`, which yields what is found"


def test_reasons_that_are_not_given_the_context(folder):
    text = declared() + "\n\ndef reasons():\n    yield\n"
    assert refused(folder({"one": text})) == "FOLDER.one: define `reasons(context)`, which yields what is found"


def test_a_unit_of_another_folder(folder):
    assert refused(folder({"one": declared()}, 'CODES = ("AMP1",)\nUNITS = ("distribution",)\n')) == (
        "FOLDER.one: a unit of FOLDER is distribution, not 'precision'"
    )


def test_reasons_where_nobody_asks_for_them(folder):
    text = declared() + "\n\ndef reasons(context):\n    yield\n"
    assert refused(folder({"one": text})) == (
        "FOLDER.one: `reasons` is not asked in FOLDER; what stands against this unit is decided in amp_rules.plan"
    )


def test_reasons_where_they_are_asked(folder):
    text = declared() + "\n\ndef reasons(context):\n    yield 'a reason'\n"
    (found,) = load(folder({"one": text}, 'CODES = ("AMP1",)\nASKS_REASONS = True\n'))
    assert found.reasons is not None and list(found.reasons(None)) == ["a reason"]


def test_notes_where_nobody_asks_for_them(folder):
    text = declared() + "\n\ndef notes(context):\n    yield\n"
    assert refused(folder({"one": text})) == "FOLDER.one: `notes` is not asked in FOLDER"


def test_notes_where_they_are_asked(folder):
    text = declared() + "\n\ndef notes(context):\n    yield 'a note'\n"
    (found,) = load(folder({"one": text}, 'CODES = ("AMP1",)\nASKS_NOTES = True\n'))
    assert found.notes is not None and list(found.notes(None)) == ["a note"]


def test_a_code_of_another_folder(folder):
    assert refused(folder({"one": declared("AMP201")})) == "FOLDER.one: codes in FOLDER begin with AMP1, unlike AMP201"


def test_a_code_of_the_reasons(folder):
    assert "AMP190 would be a reason for declining" in refused(folder({"one": declared("AMP190")}))


def test_a_code_of_the_notes(folder):
    assert "AMP180 would be a note" in refused(folder({"one": declared("AMP180")}))


def test_a_name_that_nobody_could_type(folder):
    assert "the name 'One Thing' is not of the kind" in refused(folder({"one": declared(name="One Thing")}))


def test_a_message_that_is_no_sentence(folder):
    assert "one sentence with a full stop, not 'Done'" in refused(folder({"one": declared(message="Done")}))


@pytest.mark.parametrize("page", ["", "Do something\n" + PAGE, "Do " + "some" * 30 + "thing.\n" + PAGE])
def test_a_page_without_a_title(page, folder):
    assert "the docstring is the page of AMP101; its first line" in refused(folder({"one": declared(page=page)}))


@pytest.mark.parametrize("heading", HEADINGS)
def test_a_page_without_one_of_its_sections(heading, folder):
    found = refused(folder({"one": declared(page=PAGE.replace(f"## {heading}\n", ""))}))
    assert found == f"FOLDER.one: the page of AMP101 says nothing under `## {heading}`"


def test_an_empty_section(folder):
    page = PAGE.replace("## Why\nhttps://example.org says so.\n", "## Why\n")
    assert "says nothing under `## Why`" in refused(folder({"one": declared(page=page)}))


def test_sections_in_another_order(folder):
    page = PAGE + "\n## More\nThings.\n"
    assert "has the headings What it does, Why," in refused(folder({"one": declared(page=page)}))


def test_two_with_one_code(folder):
    made = folder({"one": declared(), "two": declared(name="two-things")})
    assert refused(made) == "AMP101 (two-things) and AMP101 (one-thing) share 'AMP101'"


def test_two_with_one_name(folder):
    made = folder({"one": declared(), "two": declared("AMP102")})
    assert refused(made) == "AMP102 (one-thing) and AMP101 (one-thing) share 'one-thing'"


def test_one_that_comes_after_none(folder):
    assert refused(folder({"one": declared(more=', after=("AMP150",)')})) == (
        "AMP101 (one-thing) comes after AMP150, which there is not"
    )


def test_two_that_wait_for_each_other(folder):
    one, two = declared(more=', after=("AMP102",)'), declared("AMP102", "two-things", more=', after=("AMP101",)')
    assert refused(folder({"one": one, "two": two})) == (
        "these wait for each other by what they say in `after=`: AMP101, AMP102"
    )


def test_a_way_that_the_folder_does_not_know(folder):
    head = 'CODES = ("AMP1",)\nWAYS = ("idiom", "compat")\n'
    assert refused(folder({"one": declared(more=', ways=("idiot",)')}, head)) == (
        "FOLDER.one: no way of FOLDER is called 'idiot'"
    )


def test_no_way_where_the_folder_has_several(folder):
    head = 'CODES = ("AMP1",)\nWAYS = ("idiom", "compat")\n'
    assert refused(folder({"one": declared()}, head)) == (
        "FOLDER.one: say in `ways=` which of idiom, compat it takes part in"
    )


def test_the_order_is_that_of_the_codes_but_for_what_is_declared(folder):
    files = {
        "a": declared("AMP101", "a", more=", last=True"),
        "b": declared("AMP102", "b", more=", after=(EVERY_OTHER,)"),
        "c": declared("AMP103", "c", more=', after=("AMP104",)'),
        "d": declared("AMP104", "d"),
        "e": declared("AMP105", "e", more=', after=("AMP102",)'),
    }
    assert [rewrite.rule.name for rewrite in load(folder(files))] == ["d", "c", "b", "e", "a"]
    assert EVERY_OTHER == "*"


def test_what_there_is_comes_in_an_order_that_its_files_declare():
    codes = [rewrite.rule.code for rewrite in of_steps()]
    assert codes[-1] == "AMP101" and codes.index("AMP202") < codes.index("AMP207")
    apex = [rewrite.rule.code for rewrite in of_apex("idiom")]
    assert apex == [
        "AMP413",
        "AMP401",
        "AMP403",
        "AMP402",
        "AMP405",
        "AMP406",
        "AMP412",
        "AMP407",
        "AMP404",
        "AMP408",
        "AMP411",
        "AMP409",
    ]
    assert [rewrite.rule.code for rewrite in of_apex("compat")] == ["AMP410", "AMP411", "AMP409"]
    assert {rule.code for rule in all_rules() if rule.shared} == {"AMP101", "AMP108", "AMP119"}
