"""The pages of the notes: what is noted, why, and what may be done about it."""

from __future__ import annotations

from dataclasses import replace
from inspect import cleandoc

from amp_rules.plan import notes
from amp_rules.plan.rule import Rule

_PAGES = {
    notes.NOT_SCALED: """
        A step came after the migration, and is not scaled.

        ## What is noted
        A backward pass of a script that starts the runtime already, whose loss the scaler has no part in.

        ## Why
        In fp16 the gradients of this step are not scaled and may become zero; a step of the scaler divides them by a
        scale that they were not multiplied by.

        ## What to do by hand
        Write `amp.scaler.scale(loss).backward()` and `amp.scaler.step(optimizer)`, as the page of AMP103 shows; or
        migrate the file as it was before the first migration.
        """,
    notes.IN_FULL_PRECISION: """
        A step stays in full precision.

        ## What is noted
        What makes the model float64: `torch.set_default_dtype(torch.float64)`, `model.double()`.

        A step that evaluates a closure, as LBFGS does for a probe of features, beside an ordinary training: its
        optimizer trains models that no other one does, and its backward pass runs within the closure. Or one whose
        closure sets the gradients itself, by `torch.autograd.grad`, as a search for the input of a flow does.

        ## Why
        Autocast lowers float32 and leaves float64 alone. At O1 nothing of such a model runs in half.

        The scaler cannot step what evaluates a closure, as its scale would change between two evaluations. Such a step
        has no part in the scaled losses either, so it is right as it is, in full precision.

        ## What to do by hand
        Take float64 out before the migration, if the model trains as well in float32. For a step with a closure,
        nothing. With several processes each of them does the same; where it would be given other data in each, they are
        declined (AMP293).
        """,
    notes.OVERFLOWN_HISTOGRAM: """
        A histogram of gradients fails after an overflow.

        ## What is noted
        A histogram of gradients: `writer.add_histogram(name, p.grad)`, `np.histogram`, `plt.hist`, `wandb.Histogram`.

        ## Why
        The loss scale is found by trying: a step whose gradients overflow is skipped, the first ones of a run often.
        Until the next backward pass they stay infinite or NaN, and a histogram has no bins for these: TensorBoard's
        raises where a tensor holds nothing else, NumPy's at the first.

        ## What to do by hand
        Leave the histogram out then: `if torch.isfinite(p.grad).all():` above it. In full precision that changes
        nothing.
        """,
    notes.NPU_LEFT: """
        What asks for an NPU stays.

        ## What is noted
        Names of `torch_npu` and `torch.npu`, `.npu()`, the device `"npu"` and the backend `"hccl"`, once for each file
        of a script that is migrated.

        ## Why
        The runtime trains on CUDA and on the CPU. What Ascend's version of Apex has is rewritten as Apex is; an NPU
        that is asked for by its name is not, since there is none where the script is to run.

        ## What to do by hand
        Write `.to(amp.device())` for `.npu()`, take the calls of `torch.npu` out, and let `amp.init(ddp=True)` make the
        process group. The page *From Ascend* has a table.
        """,
    notes.IDLE_COMMENT: """
        A comment `# amp: skip` does nothing.

        ## What is noted
        A comment that leaves no edit out, or that cannot be followed: codes that do not stand in brackets, a bracket
        that is not closed, a code that there is not.

        ## Why
        Whoever wrote it meant to keep something as it is. It was rewritten, or there was nothing to rewrite.

        ## What to do by hand
        Write `# amp: skip` or `# amp: skip[AMP301]` at the end of a line of the statement, or take the comment away.
        """,
    notes.PLAIN_TORCH: """
        What plain PyTorch does not keep of a migration.

        ## What is noted
        With `--target torch`, once each for a file: what the runtime would keep and torch does not, where it concerns
        this script. Without the runtime each process decides alone whether a step is skipped, from gradients that are
        averaged already; the scale has no floor; batch norm is synchronised on CUDA only; O2 and O3 are O1.

        ## Why
        The script has no dependency besides torch, so nothing but torch can keep it.

        ## What to do by hand
        Nothing, where it does not matter to you. Where it does, migrate with `--target runtime`.
        """,
    notes.OTHERS: """
        A script that is not migrated runs under autocast, too.

        ## What is noted
        With `--target torch`: another script, which is not migrated, names a function that has a region of autocast
        now. If it calls the function, that computes in half there, too.

        ## Why
        A region of autocast in plain PyTorch is one for whoever runs it. The runtime's does nothing in scripts that do
        not start it.

        ## What to do by hand
        Nothing, where the other script may compute in half: it should look the same up to rounding. Else give it a
        function of its own, or migrate with `--target runtime`.
        """,
    notes.NO_SWITCH: """
        The script's own options got none for the level.

        ## What is noted
        With `--switch`: why a script got no option `--amp`, and at which place. It is migrated all the same.

        ## Why
        An option that may clash with another, or that is not in reach where the level is chosen, would break the
        script.

        ## What to do by hand
        Add an option without a default to the parser, `parser.add_argument("--amp", choices=["O0", "O1"])`, and give it
        to the start: `amp.init(opt_level="O1", override=args.amp)`. `AMP_OPT_LEVEL` chooses the level without any.
        """,
    notes.NOT_QUANTIZED: """
        The trained model is not made int8, and why.

        ## What is noted
        With `--quantize`: why a script got no int8 model, and at which place. It is migrated all the same.

        ## Why
        The model is quantized when all training has ended, and evaluated with the script's own function before and
        after. Where that end is not one place, or no function can be called once more with another model and nothing
        left behind, the lines would fail after hours of training, or tell a number that means nothing.

        ## What to do by hand
        Write the evaluation as a function that takes the model and a loader and gives a number, and call it below the
        training loop. Or add the lines yourself: `quantized = amp.quantize(model, "static", calibration=loader)`, an
        evaluation of it, and `amp.save_quantized(quantized, path)`.
        """,
    notes.BATCH_SIZE: """
        The batch of all processes is larger than that of one.

        ## What is noted
        The loader that the training step takes its batches from, once for the script. Each process makes batches of
        the size that is written there, so a step of N processes averages over N batches, and an epoch has one Nth of
        the steps. The learning rate is not changed. And each product with the number of GPUs, where `DataParallel`
        goes: one process took a batch for N GPUs; each of N processes has one GPU and would take it all the same, N*N
        in all. And batch norm that AMP230 synchronises in a script with processes of its own, once for the script.

        ## Why
        What learning rate suits a batch that is N times as large depends on the model and the optimizer: linear
        scaling with a warmup is usual for SGD, a square root or none for Adam.
        See https://arxiv.org/abs/1706.02677.

        ## What to do by hand
        Divide the batch size by the number of processes for the same steps as before. Or keep it, and try a learning
        rate that is up to N times as large with a warmup. `--no-sync-bn` leaves batch norm as it was.
        """,
    notes.EVALUATION: """
        What is evaluated by every process, or shared out.

        ## What is noted
        A loader outside of the training step: evaluated by every process over all samples, or shared out among them.

        ## Why
        Evaluated by every process, the numbers are the same everywhere and those of one process; the time is not
        shared. Shared out, each process sees its own part, and a number that is not reduced is about that part.

        ## What to do by hand
        Nothing, where the time of an evaluation does not matter. `--shard-eval` shares it out where that gives the
        numbers of one process (AMP223). By hand, iterate over `amp.share_evaluation(loader)`, and put counts together
        with `amp.sum_evaluated`, lists with `amp.gather_evaluated`, before anything is made of them.
        """,
    notes.BLOCKS: """
        Which parts of a sharded model are whole at a time.

        ## What is noted
        With `--shard`, each model that is prepared, and the classes of its repeated blocks as far as the text names
        them: modules of one class that occur more than once in an `nn.ModuleList` or `nn.Sequential`.

        ## Why
        Memory depends on it. The weights of a block are whole while it runs, forward and backward; what is in no block
        is whole with the model. A model without repeated blocks may be in memory whole while it runs.

        ## What to do by hand
        Nothing, where blocks are named. Else look at what `amp.init(verbose=True)` prints: the runtime looks at the
        model itself. Layers of one kind in an `nn.ModuleList` or `nn.Sequential`, which the model calls one by one, are
        found.
        """,
    notes.TABLES: """
        Which embedding tables share their rows out.

        ## What is noted
        With `--shard-embeddings ROWS`, each `nn.Embedding` and `nn.EmbeddingBag` of the script: whether its rows are
        shared out, by the number of rows that the text names, and which tables stay whole.

        ## Why
        A number of rows often comes from the data or the command line. `amp.shard_embedding(model, min_rows=ROWS)` sees
        it when the script runs, and leaves smaller tables as they are.

        ## What to do by hand
        Nothing. With another number behind `--shard-embeddings`, other tables are shared out;
        `amp.init(verbose=True)` prints which were.
        """,
    notes.NOT_SHARED: """
        An evaluation that is not shared out, and why.

        ## What is noted
        With `--shard-eval`, a loop over a loader that evaluates a model and stays whole on every process, with what was
        not understood of it.

        ## Why
        Its result would not be that of one process, or it is not certain that it would: a loop that ends early has had
        other batches, random numbers are other ones in each process, and an object that is not known may add up what
        nobody puts together. Whole on every process the numbers are right, and take as long as on one.

        ## What to do by hand
        Nothing, where the time of an evaluation does not matter. Else change the place that the note names, so that the
        loop does nothing but add up and append; or iterate over `amp.share_evaluation(loader)` and put together what it
        finds.
        """,
    notes.TOTALS: """
        A number counts what one process sees.

        ## What is noted
        A count, a total or an average that is printed or recorded, and that is about the batches of one process where
        it was about all. Those of a kind are named together, at the first.

        ## Why
        Training is the same. Who reads the number, or compares it with an earlier run, has to know what it counts.

        ## What to do by hand
        Reduce it where every process comes by, with `amp.reduce_sum(value)` or `amp.reduce_mean(value)`; or multiply a
        count by `amp.world_size()`.
        """,
    notes.LOSS_OVER_BATCH: """
        A loss sees the batch of one rank only.

        ## What is noted
        A loss that relates the samples of a batch to each other: contrastive losses, triplets that are mined from the
        batch, statistics over it. And a loss that is a sum over the batch, and that nothing divides by more than a
        constant. The first place of each kind is named.

        ## Why
        Each process computes it over its own batch, and gradients are averaged. With N processes a sample still meets
        as many others as before, not N times as many. The average of N sums is as large as the sum over the batch of
        one process, and not as that over all samples: a step stays as large as it was, as it does with a mean.

        ## What to do by hand
        Nothing, where the batch of one process is as large as it was. To relate the samples of all processes, gather
        the features with a function that passes gradients on before the loss is computed.
        """,
    notes.STEPS: """
        What is done every so many steps is done less often.

        ## What is noted
        A number of steps that stands in the script: an evaluation every 500 steps, a schedule of 10000, a function that
        sets learning rates by the step. Each of N processes makes one Nth of the steps of an epoch, each with a batch
        of all processes that is N times as large. Those of a loop are named together. Where a number of steps ends the
        training, as many are made as before, and nothing is noted. And a quotient of the dataset's length that a
        training loop uses, where it is not known whether it counts steps.

        ## Why
        The steps are counted as they are made, so an epoch has fewer evaluations, and a schedule that is stepped with
        the optimizer gets less far in as many epochs. Whether the number is meant in steps or in samples, the author
        knows best.

        ## What to do by hand
        Nothing, where it is meant in steps. Otherwise divide it: `max(1, 500 // amp.world_size())`. What is made of the
        dataset's length and the loader's batch size is a rank's own already (AMP221); wrap another number of steps in
        `amp.share_of(...)`.
        """,
    notes.OWN_LEFT: """
        Something of the script's own processes is left as it is.

        ## What is noted
        With `--ddp`, where a script joins its processes itself: a place that one of AMP230 to AMP237 would complete,
        and what was not understood of it. The note begins with the code. Without a code, what is wrong in the script
        and no rewrite mends: a group that is made twice, a forward pass through `DistributedDataParallel` on one
        process alone, what one process alone has computed or taken up from a checkpoint and the others go on to use,
        and a loop that one process alone leaves.

        ## Why
        The script runs as it did. Only what is certain is written: which value is the rank, which loader trains. What a
        script does wrong itself stays, since mending it means to know what was meant.

        ## What to do by hand
        Write what the page of the code shows, or leave it: `--ignore` with that code takes the note away. Where there
        is none, let every process compute the value, or send it from the first: `torch.distributed.broadcast`.
        """,
    notes.APEX_KEPT: """
        Something of Apex stays: its interface, from the runtime, or an extension that the runtime has not.

        ## What is noted
        The imports were changed and nothing else, because `--apex compat` asks for it, or because of a place that was
        not understood, which the note names. With a line: what Apex's build compiles is loaded there by itself
        (`fused_adam_cuda`), as copies of Apex's own classes do, and nothing takes over where that fails.

        ## Why
        The runtime has the same interface on its own engine, so the script trains without Apex. An extension is not
        part of it: what uses one runs only where Apex was built with it.

        ## What to do by hand
        Nothing. To leave the interface behind, change the place that the note names, and migrate again. In place of a
        copied class, take the runtime's, where the note names one.
        """,
    notes.APEX_LEVEL: """
        The level stays the one that Apex was given.

        ## What is noted
        A script that called `amp.initialize` with an `opt_level` of its own, which is kept.

        ## Why
        Its author chose the level. `--opt-level` is for scripts that have none.

        ## What to do by hand
        Change the level in `amp.init(...)`, or set `AMP_OPT_LEVEL` for a run.
        """,
    notes.OLD_TORCH: """
        A script for Apex is brought up to a current PyTorch.

        ## What is noted
        Rewrites of AMP5 that came without `--modernize`, since the script uses Apex: those of what a current PyTorch
        refuses, or has by another name. What still runs, as `Variable` does, stays. What else stops the script on a
        current PyTorch is not known.

        ## Why
        Such scripts were written for PyTorch 1.0 to 1.4. Without Apex they would still stop, at
        `correct[:k].view(-1)` or `from torch._six import inf`.

        ## What to do by hand
        Nothing. `--no-modernize`, or `modernize = false` in `[tool.amp-migrate]`, leaves those places as they are.
        """,
    notes.APEX_ELSEWHERE: """
        A script that is not migrated shares a module that keeps the loss scale.

        ## What is noted
        A module that scaled the loss with Apex, or kept `amp.state_dict()` in checkpoints, was migrated for one script;
        another script imports it, calls Apex's `amp.initialize` itself, and was not named.

        ## Why
        The migrated module scales by `amp.scaler`, which waits for `amp.init`. A script that starts Apex instead
        would train in half precision without a loss scale, and its checkpoints would hold none.

        ## What to do by hand
        Migrate the scripts together, in one run: `amp-migrate first.py second.py`.
        """,
}


def all_noted() -> list[Rule]:
    """Everything that can be noted, by code, with its page."""
    return sorted((replace(rule, page=cleandoc(page)) for rule, page in _PAGES.items()), key=lambda rule: rule.code)
