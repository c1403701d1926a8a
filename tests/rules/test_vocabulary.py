"""The seam between what a rewrite wants and how it is written: with other words, no rewrite changes."""

from __future__ import annotations

import ast

import pytest
from amp_rules.flow import libraries
from amp_rules.plan import vocabularies
from amp_rules.plan.options import Options
from amp_rules.text.actions import Decorate, Insert, Replace, Wrap
from amp_rules.text.expression_edits import (
    add_entry,
    add_keyword,
    as_function,
    call_with,
    change_function,
    either,
    substitute,
)
from amp_rules.text.vocabulary import Vocabulary, Written
from amp_rules.torch.optimizers import PARAMETERS_OF_OPTIMIZER
from migrating import ENTRY, cases, migrated


def around(node, function, *more):
    return Written((Replace(node, call_with(function, *more)),))


class Words(Vocabulary):
    """Writes everything as a method of ``X``."""

    starting = frozenset({"library_x.start"})
    preparing = frozenset({"library_x.model"})

    def import_line(self, module):
        return None if "import library_x as X" in module.source.text else "import library_x as X"

    def start(self, module, start, width=None):
        return f"X.start({start.opt_level}, {start.ddp})"

    def overridden(self, module, call, override):
        return Written((Replace(call, substitute(f"X.start({override})")),))

    def joined(self, module, call, sync_bn):
        return f"X.start({module.code(call.args[0])}, True)"

    def autocast(self, module, first, last):
        return Written((Wrap(first, last, "with X.autocast():"),))

    def autocast_argument(self, module, statement, argument, variable):
        line = f"with X.autocast():\n    {variable} = {ast.unparse(argument)}"
        return Written((Insert(statement, line), Replace(argument, substitute(variable))))

    def without_autocast(self, module, first, last):
        return Written((Wrap(first, last, "with X.without_autocast():"),))

    def in_float32(self, module, function):
        return around(function, "X.in_float32")

    def in_float32_if(self, module, made, test):
        wrapped, choice = call_with("X.in_float32"), either(test, module.text(made))
        return Written((Replace(made, lambda node: choice(wrapped(node))),))

    def called_in_float32(self, module, node, function, *, tensor_last=False):
        return Written((Replace(node, as_function(f"X.in_float32({function})", tensor_last=tensor_last)),))

    def decorated_in_float32(self, module, definition):
        return Written((Decorate(definition, "X.in_float32"),))

    def at_least_float32(self, module, dtype):
        return f"X.at_least_float32({dtype})"

    def in_other_threads(self, module, function):
        return around(function, "X.in_other_threads")

    def backward(self, site, variable):
        if variable is None:
            return Written((Replace(site.call, substitute(f"X.backward({ast.unparse(site.loss)})")),))
        line = f"with X.autocast():\n    {variable} = {ast.unparse(site.loss)}"
        return Written((Insert(site.statement, line), Replace(site.call, substitute(f"X.backward({variable})"))))

    def unscale(self, module, look, optimizers):
        return Written((Insert(look, "\n".join(f"X.unscale('{item.optimizer}')" for item in optimizers)),))

    def step(self, site, result=None):
        return Written((Replace(site.call, substitute(f"X.step({ast.unparse(site.optimizer)})")),))

    def update_scale(self, module, statement, *, before=False):
        return Written((Insert(statement, "X.update_scale()", after=not before),))

    def scale_saved(self, module, made, key):
        entry = add_entry(f"{key}: X.scale()") if isinstance(made, ast.Dict) else add_keyword("scaler=X.scale()")
        return Written((Replace(made, entry),))

    def scale_stored(self, module, statement, saved, key):
        return Written((Insert(statement, f"{saved}[{key}] = X.scale()", after=True),))

    def scale_restored(self, module, statement, loaded, key):
        return Written((Insert(statement, f"X.restore_scale({loaded}, {key})", after=True),))

    def model(self, place, *, delayed, unused=False):
        if place.made is not None and place.in_place:
            return around(place.made, "X.model", f"{delayed}")
        line = f"{place.variable} = X.model({place.variable}, {delayed})"
        return Written((Insert(place.statement, line, after=True, order=place.order),))

    def delayed(self, module, call):
        return Written((Replace(call, add_keyword("delayed=True")),))

    def fused_optimizer(self, module, call, name):
        return Written((Replace(call, add_keyword("fused=True")),), needs_import=False)

    def device(self, module, node, *, is_constructor, as_text=False, as_index=False):
        return around(node, "X.device")

    def device_of_option(self, module, statement, path):
        return Written((Insert(statement, f"{path} = X.device({path})", after=True),))

    def moved_to_own_device(self, module, call):
        return around(call, "X.own_device")

    def loader(self, module, node, variable):
        return around(node, "X.loader")

    def loader_of(self, module, statement, variable, *, after, condition=""):
        return Written((Insert(statement, f"{variable} = X.loader({variable})", after=after),))

    def unwrapped(self, module, node, *, owner):
        return around(node, "X.unwrapped")

    def whole_state(self, module, call):
        return Written((Replace(call, change_function("X.whole_state")),))

    def tables_shared_out(self, place, min_rows):
        return Written((Insert(place.statement, f"X.tables_shared_out({place.variable})", after=not place.before),))

    def quantized(self, module, model, kind, calibration, inputs):
        return f"X.quantized({model}, {calibration}, {inputs})"

    def quantized_from_training(self, module, model):
        return f"X.quantized_from_training({model})"

    def ranges_frozen(self, module, model):
        return f"X.ranges_frozen({model})"

    def quantized_saved(self, module, model, path):
        return f"X.quantized_saved({model}, {path})"

    def clipped_by_norm(self, module, call):
        return Written((Replace(call, change_function("X.clipped_by_norm")),))

    def names_of_data_parallel(self, module, call):
        return Written((Replace(call, change_function("X.names_of_data_parallel")),))

    def on_main_process(self, module, first, last):
        return Written((Wrap(first, last, "if X.is_main_process():"),))

    def called_on_main(self, module, function, *, share_folder=False):
        return around(function, "X.called_on_main", *(["share_folder=True"] if share_folder else []))

    def asked_on_main(self, module, call):
        return around(call, "X.asked_on_main")

    def main_process_first(self, module, first, last):
        return Written((Wrap(first, last, "with X.main_process_first():"),))

    def asked_once_before(self, module, loop, iterable):
        return Written((Insert(loop, f"X.first({module.text(iterable)})"),))

    def raised_in_several(self, module, statement):
        return Written((Insert(statement, "X.raise_again()"),))

    def same_folder(self, module, statement):
        return Written((Insert(statement, "X.same_folder()"),))

    def barrier(self, module, statement):
        return Written((Insert(statement, "X.barrier()"),))

    def summed(self, module, node, loader):
        return around(node, "X.total")

    def summed_after(self, module, statement, variable, loader):
        return Written((Insert(statement, f"{variable} = X.total({variable})", after=True),))

    def shared_evaluation(self, module, loader):
        return around(loader, "X.part")

    def put_together(self, module, loop, sums, lists, worked_out):
        paths = [path for group in [*sums, lists] for path in group]
        rows = [f"{path} = X.all_of({path})" for path in paths]
        return Written((Insert(loop, "\n".join([*rows, *worked_out]), after=True),))

    def share_of(self, module, node, loader):
        return around(node, "X.share_of")

    def seed_by_rank(self, module, statement):
        return Written((Insert(statement, "X.seed_by_rank()"),))

    def seed_alike(self, module, statement):
        return Written((Insert(statement, "X.seed_alike()"),))

    def reduced(self, module, number):
        return around(number, "X.mean")

    def reduced_once(self, module, statement, numbers, variable):
        given = module.text(numbers[0])
        places = (Replace(item, substitute(variable)) for item in numbers)
        return Written((Insert(statement, f"{variable} = X.mean({given})"), *places))

    def reduced_before(self, module, statement, variable):
        return Written((Insert(statement, f"{variable} = X.mean({variable})"),))

    def of_main_process(self, module, value):
        return around(value, "X.first")

    def drawn_alike(self, module, function):
        return around(function, "X.drawn_alike")

    def same_seed(self, module, call):
        return Written((Replace(call, add_keyword("seed=X.same_seed()")),))

    def seed_of_rank(self, module, seed):
        return around(seed, "X.seed_of_rank")

    def same_order(self, module, elements):
        return around(elements, "X.same_order")

    def same_hash(self, module, function):
        return around(function, "X.same_hash")

    def is_main_process(self, module):
        return "X.is_main_process()"

    def several_processes(self, module):
        return "X.several_processes()"

    def for_drafts(self):
        return self

    def finished(self, text, module):
        return text

    def shown(self, message):
        return message

    def is_used(self, module):
        return "X." in module.source.text

    def prepared(self, module, model):
        return f"X.model({model})"

    def scaled(self, module, loss, loss_id):
        return f"X.scaled({loss}, {loss_id})"

    def scale(self, module):
        return "X.scale()"

    def set_scale(self, module, value):
        return f"X.set_scale({value})"

    def counterpart(self, module, target):
        return f"X.{target.rpartition('.')[2]}"

    def drop_in(self, path):
        return f"library_x.{path}" if path else "library_x.apex"


@pytest.fixture
def words(monkeypatch):
    monkeypatch.setattr(vocabularies, "RuntimeVocabulary", Words)
    # What stands for Apex's function in a draft gives the optimizer's parameters, whatever it is called.
    monkeypatch.setattr(libraries, "PARAMETERS_OF_OPTIMIZER", PARAMETERS_OF_OPTIMIZER | {"library_x.master_params"})


SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
loader = DataLoader(data, batch_size=8)
model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
torch.save(model.state_dict(), "model.pt")
"""

IN_OTHER_WORDS = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import library_x as X

X.start("O1", True)

data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
loader = X.loader(DataLoader(data, batch_size=8))
model = nn.Linear(4, 1)
model = X.model(model, False)
optimizer = torch.optim.Adam(model.parameters(), fused=True)
for x, y in loader:
    optimizer.zero_grad()
    with X.autocast():
        loss = nn.functional.mse_loss(model(x), y)
    X.backward(loss)
    X.unscale('optimizer')
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    X.step(optimizer)
    X.update_scale()
if X.is_main_process():
    torch.save(X.unwrapped(model).state_dict(), "model.pt")
"""


@pytest.mark.usefixtures("words")
def test_a_script_is_migrated_in_other_words(tmp_path):
    _, after = migrated(tmp_path, {ENTRY: SCRIPT.encode()}, Options(ddp=True))
    assert after[ENTRY].decode() == IN_OTHER_WORDS


# One case of each rewrite: it must not name the runtime where the words are others.
CASES = {case.code: case for case in cases() if not case.is_noop and case.code < "AMP5"}


@pytest.mark.usefixtures("words")
@pytest.mark.parametrize("case", CASES.values(), ids=str)
def test_no_rewrite_has_words_of_its_own(case, tmp_path):
    report, after = migrated(tmp_path, case.before, case.options)
    assert case.code in {edit.code for edit in report.edits}
    for name, text in after.items():
        ast.parse(text)
        assert b"amp_runtime" not in text or b"amp_runtime" in case.before[name]
    assert any(b"library_x" in text for text in after.values()) or b"amp_runtime" not in b"".join(case.after.values())
