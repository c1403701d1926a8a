"""What a reader has to know besides the edits: one sentence for a place, with a code and a page of its own.

A note never stands in for a rewrite or a reason for declining: the program trains as it did. What several processes
change all the same, by what they are, is told at its place: the size of the batch, what is counted and printed, what is
evaluated where, and losses that see the batch of one rank.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from amp_rules.plan.report import Note
from amp_rules.plan.rule import Rule
from amp_rules.source.modules import Module
from amp_rules.source.spans import Position, Span

NOT_SCALED = Rule(
    "AMP180",
    "step-after-migration",
    "A step came after the migration, and bypasses the scaler or autocast.",
    "precision",
)
UNSAVED_SCALE = Rule(
    "AMP380", "scale-not-saved", "A checkpoint that training goes on from holds no loss scale.", "precision"
)
NOT_QUANTIZED = Rule("AMP181", "not-quantized", "What `--quantize` leaves out, and why.", "precision")
IDLE_COMMENT = Rule("AMP182", "idle-skip-comment", "A comment `# amp: skip` has no effect.", "precision")
PLAIN_TORCH = Rule("AMP183", "not-kept-by-torch", "What a migration loses in plain PyTorch.", "precision")
OTHERS = Rule("AMP184", "autocast-for-others", "A script that is not migrated runs under autocast, too.", "precision")
NO_SWITCH = Rule("AMP185", "no-level-switch", "The script got no option for the level.", "precision")
IN_FULL_PRECISION = Rule("AMP186", "step-in-full-precision", "A step stays in full precision.", "precision")
OVERFLOWN_RECORD = Rule(
    "AMP187",
    "overflow-in-a-record",
    "What a script records of gradients, or mends in them, breaks at an overflow.",
    "precision",
)
OWN_STEP = Rule("AMP485", "own-step-wrong", "A step of the script's own mixed precision goes wrong.", "precision")
NEXT_METHOD = Rule("AMP486", "next-of-a-loader", "An iterator of a loader has no method `next`.", "precision")
REFUSED = Rule(
    "AMP487", "refused-by-pytorch", "A current PyTorch refuses what the script does at a place.", "precision"
)
NOT_REACHED = Rule("AMP488", "training-not-reached", "The script ends above its training, or within.", "precision")
NOT_READ = Rule(
    "AMP489", "module-not-read", "The module of a model is named when the script runs, and was not read.", "precision"
)
NPU_LEFT = Rule("AMP189", "device-left", "What asks for an NPU, or for `mps` and never CUDA, stays.", "precision")
BATCH_SIZE = Rule(
    "AMP280", "batch-of-all-ranks", "The batch of all processes is larger than that of one.", "distribution"
)
EVALUATION = Rule(
    "AMP281", "evaluation-by-rank", "Each process evaluates all samples, or a share of them.", "distribution"
)
TOTALS = Rule("AMP282", "count-of-a-rank", "A number covers the data of one process only.", "distribution")
LOSS_OVER_BATCH = Rule("AMP283", "loss-over-a-ranks-batch", "A loss uses the batch of one rank only.", "distribution")
STEPS = Rule("AMP284", "fewer-steps-an-epoch", "What runs every N steps runs less often in an epoch.", "distribution")
BLOCKS = Rule("AMP285", "sharded-blocks", "Which parts of a sharded model are whole at a time.", "distribution")
NOT_SHARED = Rule(
    "AMP286", "evaluation-not-shared", "An evaluation that is not split across the processes, and why.", "distribution"
)
TABLES = Rule("AMP287", "sharded-tables", "Which embedding tables are sharded by rows.", "distribution")
OWN_LEFT = Rule(
    "AMP288", "own-processes-left", "A part of the script's own distributed code is left as it is.", "distribution"
)
AVERAGED = Rule(
    "AMP289", "gradients-at-the-step", "How gradients are averaged where the plain wrapper does not do.", "distribution"
)
APEX_KEPT = Rule(
    "AMP480",
    "apex-interface-kept",
    "A part of Apex stays: its interface, which the runtime has, or an extension, which it has not.",
    "precision",
)
APEX_LEVEL = Rule("AMP481", "apex-level-kept", "The script keeps the level that it gave to Apex.", "precision")
OLD_TORCH = Rule("AMP482", "apex-script-modernized", "A script for Apex is updated to a current PyTorch.", "precision")
APEX_ELSEWHERE = Rule(
    "AMP483", "apex-elsewhere", "A script that is not migrated shares a module that keeps the loss scale.", "precision"
)
APEX_OPTION = Rule(
    "AMP484", "apex-option-left", "An option chooses Apex, which turns nothing on any more, or cannot run.", "precision"
)

OWN_PRECISION_STAYS = "only the processes join here; the script's own mixed precision stays as it is"
"""What is said where the runtime starts at O0 in a script that keeps its own autocast and scaler."""

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Rule))


def note(rule: Rule, module: Module, node: ast.AST | None, text: str) -> Note:
    """A note at ``node``, or about a whole file; ``text`` is a sentence without a full stop, naming the user's own."""
    span = module.span(node) if node is not None else None
    return Note(module.path, span, rule.code, rule.name, text)


def note_at_line(rule: Rule, module: Module, line: int, text: str) -> Note:
    """A note on a line of which the tree knows nothing, such as a comment."""
    span = Span(Position(line, 1), Position(line, len(module.lines[line - 1]) + 1))
    return Note(module.path, span, rule.code, rule.name, text)


def in_order(notes: Iterable[Note]) -> tuple[Note, ...]:
    """The notes by file and place, each once, so that a report comes out the same every time."""
    return tuple(sorted(dict.fromkeys(notes), key=note_order))


def note_order(item: Note) -> tuple[object, ...]:
    """By file and place, what is about a whole file first, and by all else that tells two notes apart."""
    start = item.span or Span(Position(0, 0), Position(0, 0))
    text = "" if item.code == PLAIN_TORCH.code else item.text  # what matters most comes first there already
    return (str(item.path), item.cell or 0, start, item.code, text)
