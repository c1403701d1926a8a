"""A rule that is declared wrongly is refused, and its author is told what to write."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from amp_rules.checks import all_checks
from amp_rules.lint.check import Check
from amp_rules.lint.declarations import WrongDeclarationError, refuse_if_elsewhere, refuse_if_twice, refuse_if_wrong

FILE = Path("checks/types/lowp_demo.py")


class LowpDemo(Check):
    """Something is wrong in half precision."""

    code = "AMP789"
    name = "lowp-demo"
    message = "Something is wrong in half precision."
    triggers = ("softmax",)
    operations = ("softmax",)

    def visit(self, op, frame):
        pass


class LooksAtNothing(Check):
    """Something is wrong in half precision."""

    code, name, message, triggers = LowpDemo.code, LowpDemo.name, LowpDemo.message, LowpDemo.triggers


def declared(base=LowpDemo, **fields):
    return type("LowpDemo", (base,), {"__doc__": base.__doc__, **fields})


def test_a_right_declaration_is_taken():
    refuse_if_wrong(LowpDemo, FILE)
    refuse_if_wrong(declared(triggers=(re.compile("soft"),), fix_title="mend it", fix_safety="safe"), FILE)
    refuse_if_wrong(declared(preview="it is true of every model", in_order=True, states=("$demo",)), FILE)


@pytest.mark.parametrize(
    ("check", "file", "wrong", "instead"),
    [
        (declared(code="AMP999"), FILE, "the code is 'AMP999'", "AMP600 to AMP989"),
        (declared(code="AMP660"), FILE, "AMP660 stands in the folder types", "move the file to checks/numbers"),
        (declared(name="LowpDemo"), FILE, "the name is 'LowpDemo'", "small letters"),
        (declared(name="half-demo"), FILE, "`half-demo` stands in lowp_demo.py", "call the file half_demo.py"),
        (declared(__doc__=None), FILE, "no docstring", "write its page"),
        (declared(message="something"), FILE, "the message is 'something'", "one sentence"),
        (declared(severity="fatal"), FILE, "the severity is 'fatal'", "error, warning, performance, info"),
        (declared(fix_safety="safe"), FILE, "`fix_safety` and no `fix_title`", "write what the fix does"),
        (declared(fix_title="mend it"), FILE, "`fix_title` and no `fix_safety`", 'write "safe"'),
        (declared(preview=True), FILE, "`preview = True` gives no reason", "why the rule has to be asked for"),
        (declared(triggers=()), FILE, "no `triggers`", "write texts"),
        (declared(triggers="softmax"), FILE, "`triggers` is 'softmax'", "write a tuple"),
        (declared(file_triggers=("",)), FILE, "`file_triggers` is ('',)", "write a tuple"),
        (declared(LooksAtNothing), FILE, "looks at nothing", "write one of `visit`"),
        (declared(LooksAtNothing, operations=("div",)), FILE, "`operations` and no `visit`", "leave them out"),
        (declared(operations=()), FILE, "`visit` is shown nothing", "write the operations"),
        (declared(operations=("sofmax",)), FILE, "no operation is called `sofmax`", "write `softmax`"),
        (declared(operations=("zzzzzz",)), FILE, "no operation is called `zzzzzz`", "write a name from"),
        (declared(in_order=True), FILE, "`in_order` and has no `states`", "write where it keeps them"),
        (declared(states=("$demo",)), FILE, "`states` and is not `in_order`", "write `in_order = True`"),
        (declared(in_order=True, states=("demo",)), FILE, "would hide a variable", "write `$demo`"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_write(check, file, wrong, instead):
    with pytest.raises(WrongDeclarationError) as raised:
        refuse_if_wrong(check, file)
    lines = str(raised.value).splitlines()
    assert all(line.startswith(f"{file}: LowpDemo: ") for line in lines)
    assert any(wrong in line.partition("; ")[0] and instead in line.partition("; ")[2] for line in lines), lines


def test_everything_that_is_wrong_is_said_at_once():
    with pytest.raises(WrongDeclarationError) as raised:
        refuse_if_wrong(declared(code="AMP1", triggers=(), fix_safety="safe"), FILE)
    assert len(str(raised.value).splitlines()) == 3


@pytest.mark.parametrize("field", ["code", "name"])
def test_two_rules_of_one_code_or_name_are_refused(field):
    other = all_checks()[0]
    with pytest.raises(WrongDeclarationError, match=f"`{getattr(other, field)}` is taken by .*{type(other).__name__}"):
        refuse_if_twice([*all_checks(), declared(**{field: getattr(other, field)})()])


def test_a_file_beside_the_families_is_refused():
    refuse_if_elsewhere(["common", "numbers", "step"], Path("checks"))
    with pytest.raises(WrongDeclarationError, match=r"checks/lowp_demo: .*move it to the folder of its family"):
        refuse_if_elsewhere(["common", "lowp_demo"], Path("checks"))
