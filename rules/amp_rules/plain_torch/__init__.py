"""Plain PyTorch as output: a migrated program in the words of :mod:`amp_runtime` becomes one in torch's own.

The plan, the refusals and the notes are those of the migration to the runtime; this stage comes after it and changes
words only. It reads the migrated texts as a program again, so that it knows of each call of the runtime what it is
given, and who calls the function around it; it serves plain scripts, scripts that were Apex's, and scripts that use the
runtime since an earlier run alike. What torch has no words for declines, with its line.

``stage``         the way from a report in the runtime's words to one in torch's
``telling``       what is told of the edits then; ``unbound`` finds names that lost their binding on the way
``by_hand``       uses of the runtime that somebody edited since an earlier migration
``translation``   one program on its way: what is used of the runtime, and what becomes of it
``uses``          where a program uses the runtime
``file_head``     imports, constants and helper functions of one file
``gpu``           whether a program may use one
``regions``       what runs under autocast; there ``index_writes``, ``leaving`` and ``arrays`` convert what torch does
                  not, and ``raising`` declines what the linter knows to raise
``words``         the table from the runtime's names to the functions that translate them

One file each for what belongs together: ``precision``, ``loss_scaling`` (where the scaler is made and how it gets to
its uses), ``optimizers``, ``models``, ``loaders``, ``ranks``, ``joining`` (how processes join and part), ``on_main``,
``guards`` (what only the first process does), ``reductions``, ``random_numbers``, ``generators`` and ``streams`` (what
has to be drawn alike), ``hoisting`` (expressions that get a variable), ``unwritten`` (what is never written).
"""
