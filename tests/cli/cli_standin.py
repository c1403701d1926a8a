"""A stand-in for the analysis, so that the command line can be tested alone, on files of three lines.

Words in a file choose what becomes of it: without ``backward`` it holds no training step, with ``amp.scaler``
it is migrated already, with OWN its precision is, with LAUNCHED only a launcher can start it, with ASKS its command
line has to name something, with FULL its own level is O0, with HALVED no level reaches it, and DECLINE, BOOM, DEEP,
UNPARSABLE and RACE do what they say.
``import shared`` makes ``shared.py`` beside the entry change too. Run as a script, it is ``amp-migrate`` with that
analysis.
"""

from __future__ import annotations

from dataclasses import replace

from amp_rules.plan.report import Edit, FileChange, Note, Refusal, Report
from amp_rules.source.spans import Position, Span
from amp_rules.source.text import parse_source

OLD, NEW = "loss.backward()", "amp.scaler.scale(loss).backward()"
TRAIN = "import torch\nloss = net(x)\nloss.backward()\n"
RECIPE = "Write this by hand:\n    optimizer.step()"


def span_of(text, word):
    before, _, _ = text.partition(word)
    line = before.count("\n") + 1
    column = len(before) - (before.rfind("\n") + 1) + 1
    return Span(Position(line, column), Position(line, column + len(word)))


def migrate(entry, options, *, files):
    sources = {entry: files.source(entry)}
    text = sources[entry].text
    parse_source(sources[entry])
    distribution = "migrated" if options.ddp else "not requested"
    if "backward" not in text:
        return Report(entry, "absent", "absent")
    if "BOOM" in text:
        raise KeyError("no such role")
    if "DEEP" in text:
        raise RecursionError
    if "DECLINE" in text:
        span = span_of(text, "DECLINE")
        refusal = Refusal(entry, span, "AMP900", "odd-step", "precision", "`loss` is not understood", RECIPE)
        return Report(entry, "declined", "declined", (), (), (refusal,))
    if NEW in text:
        return Report(entry, "already", "already")
    if "import shared" in text:
        shared = entry.parent / "shared.py"
        sources[shared] = files.source(shared)
    changes, edits, notes = [], [], []
    for path, source in sources.items():
        if OLD in source.text:
            after = source.text.replace(OLD, NEW + (" (" if "UNPARSABLE" in text else ""))
            changes.append(FileChange(path, source.text, after))
            edits.append(Edit(path, span_of(source.text, OLD), "AMP101", "scale-loss", f"scales {options.loss_scale}"))
    if "net(x)" in text:
        notes.append(Note(entry, span_of(text, "net(x)"), "AMP280", "batch-of-all-ranks", "a note"))
    if "RACE" in text:
        entry.write_bytes(b"# somebody saved this meanwhile\n")
    precision = "already" if "OWN" in text else "migrated"
    launched = "1" if "LAUNCHED" in text else ""
    found = Report(entry, precision, distribution, tuple(changes), tuple(edits), (), tuple(notes), launched)
    return replace(found, in_full="FULL" in text, asks="ASKS" in text, reads_level="HALVED" not in text)


STANDIN_PATH = __file__

if __name__ == "__main__":
    import amp_rules
    from amp_migrate.commands.migrate import main

    amp_rules.migrate = migrate
    main(prog_name="amp-migrate")
