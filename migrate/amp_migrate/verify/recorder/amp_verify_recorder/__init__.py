"""Writes down what a training script computes, from inside its process and without a change in it.

It runs where ``sitecustomize`` beside it is found on ``PYTHONPATH`` and ``AMP_VERIFY_RECORD`` names a folder. It draws
no random number, changes no result but where ``AMP_VERIFY_PLAIN_AMP`` asks for that, and what it does not understand
it leaves out. Besides that folder it reads:

``AMP_VERIFY_STEPS``: the process ends at the start of the backward call after so many; without it, with the script;
``AMP_VERIFY_SECONDS``: or at the first round number of them after that time, but not before ``AMP_VERIFY_LEAST``;
``AMP_VERIFY_SEED``: torch, random and numpy are seeded with it when they are imported;
``AMP_VERIFY_CLOCK``: how many times as fast the script's clock goes, see :mod:`.clock`;
``AMP_VERIFY_ROOT``: the folder that names of files are relative to, which is a copy;
``AMP_VERIFY_PROJECT``: the folder that it is a copy of, from which no module should come;
``AMP_VERIFY_BATCHES``: a JSON file of batches for loaders to read instead of those of their samplers;
``AMP_VERIFY_WAYS``: whether to follow the lines of the project, see :mod:`.ways`;
``AMP_VERIFY_PLAIN_AMP``: ``fp16`` or ``bf16``, to run the script under torch's own mixed precision in that type;
``AMP_VERIFY_NATIVE`` and what goes with it: see :mod:`.native_amp`, a version that was migrated by hand;
``AMP_VERIFY_NO_GPU``: see :mod:`.no_gpu`;
``AMP_VERIFY_INT8``: see :mod:`.int8`.

Each process that trains writes ``rank<R>-<pid>.jsonl``: one JSON object a line, whose keys are those of the ``add``
calls in this package; ``steps<R>-<pid>`` holds how many backward calls it has begun. Python 3.10 and torch 2.4 are the
oldest that it knows.
"""

from __future__ import annotations

from typing import Any


def start() -> None:
    """Begin to record in this process, and to seed what the script imports."""
    from . import (
        carrying,
        clock,
        imports,
        int8,
        left,
        loading,
        models,
        moves,
        native_amp,
        no_gpu,
        noise,
        one_replica,
        parting,
        plain_amp,
        processor,
        saying,
        scaling,
        schedules,
        seeding,
        steps,
        ways,
        writing,
    )
    from .record import Record, guarded

    record = Record()
    for watch_outputs in (clock.watch, saying.watch, writing.watch):
        guarded(watch_outputs)(record)
    seeding.seed_python(record)
    imports.after("numpy.random", lambda module: seeding.seed_numpy(record, module))

    def watch(torch: Any) -> None:
        seeding.seed_torch(record, torch)
        seen = steps.Steps(record, torch)
        # What changes how a script computes comes first: what is recorded is recorded of that. And what is recorded is
        # what the script hands over, before plain_amp scales its loss.
        changing = (no_gpu, native_amp, one_replica, plain_amp)
        watched = (
            steps,
            moves,
            models,
            loading,
            noise,
            scaling,
            schedules,
            processor,
            left,
            ways,
            carrying,
            parting,
            int8,
        )
        for part in (*changing, *watched):
            guarded(part.watch)(seen)

    imports.after("torch", watch)
