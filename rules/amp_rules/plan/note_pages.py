"""The pages of the notes: what is noted, why, and what may be done about it."""

from __future__ import annotations

from dataclasses import replace
from inspect import cleandoc

from amp_rules.plan import notes
from amp_rules.plan.rule import Rule

_PAGES = {
    notes.NOT_SCALED: """
        A step came after the migration, and bypasses the scaler or autocast.

        ## What is noted
        In a script that starts the runtime, or that was migrated with `--target torch` (it reads `AMP_OPT_LEVEL`):

        - a backward pass that the scaler has no part in: `loss.backward()`;
        - an optimizer that steps around the scaler: `optimizer.step()`;
        - a forward pass of a trained model that a scaled loss is computed from, with gradients and outside of autocast.

        Not under `with amp.autocast(enabled=False):`, in what `amp.float_function` makes, or in a script that starts
        the runtime with `opt_level="O0"`: there FP32 is meant. Nor where a branch trains without a scaler in place of
        the one that has it, or under a context that is not known.

        ## Why
        In fp16 the gradients of a loss that is not scaled may become zero, and a step of the scaler divides them by a
        scale that they were not multiplied by. A plain step takes gradients that are multiplied by it. A forward pass
        outside of autocast is right, and as slow as before.

        ## What to do by hand
        Write `with amp.autocast():` around the computation of the loss, `amp.scaler.scale(loss).backward()` and
        `amp.scaler.step(optimizer)`, as the page of AMP103 shows (`torch.autocast(...)` and `scaler` in plain PyTorch).
        Or migrate the file as it was before the first migration. A comment `# amp: skip` at the line keeps it.
        """,
    notes.IN_FULL_PRECISION: """
        A step stays in full precision.

        ## What is noted
        What makes the model float64: `torch.set_default_dtype(torch.float64)`, `model.double()`.

        A step that evaluates a closure, as LBFGS does for a probe of features, beside an ordinary training: its
        optimizer trains models that no other one does, and its backward pass runs within the closure. Or one whose
        closure sets the gradients itself, by `torch.autograd.grad`, as a search for the input of a flow does.

        A backward pass that looks at the model and trains nothing, as a map of what an output rests on does (Grad-CAM)
        or an attack in an evaluation: it reads the gradients of its input or of a hidden layer, or those of weights
        that it clears first (the squares of a Fisher information), and each round of the training clears what it leaves
        in the weights. It gets no loss scale and no autocast. At O2 and O3 the weights are half, and small gradients
        may vanish in it.

        Features that a frozen network gives a training step by a method other than `forward`, without gradients:
        `model.extract_features(x)`. Only what `forward` gives is cast back to float32, so the call is left alone. So
        is an evaluation by a method or a part of a model of which it is not known what it gives: a mapping, or what a
        library computes; and one whose result is multiplied by a matrix in the same statement.

        A script of which no matrix product and no convolution runs under autocast, because all of them need FP32: those
        that `torch.autograd.grad` differentiates (AMP107), or that become distances (AMP116).

        ## Why
        Autocast lowers float32 and leaves float64 alone. At O1 nothing of such a model runs in half.

        The scaler cannot step what evaluates a closure, as its scale would change between two evaluations. Such a step
        has no part in the scaled losses either, so it is right as it is, in full precision.

        ## What to do by hand
        Take float64 out before the migration, if the model trains as well in float32. Where features take much of the
        time, put their call under `amp.autocast()` and make them float32 behind it. For a step with a closure, nothing.
        With several processes each of them does the same; where it would be given other data in each, they are declined
        (AMP293), and so is a backward pass that looks at the model, which would average gradients there.
        """,
    notes.OVERFLOWN_RECORD: """
        What a script records of gradients, or mends in them, breaks at an overflow.

        ## What is noted
        A histogram of gradients: `writer.add_histogram(name, p.grad)`, `np.histogram`, `plt.hist`, `wandb.Histogram`.
        So is `wandb.watch(model)`, unless it logs parameters alone, and a sum or an average of the norms that
        `clip_grad_norm_` returns: `total += norm`, `norms.update(norm.item())`; and a list of norms that says how far
        gradients are clipped, `clip_grad_norm_(weights, np.percentile(norms, 10))`. And anomaly detection that is on:
        `torch.autograd.set_detect_anomaly(True)`, `with torch.autograd.detect_anomaly():`. And what writes other
        numbers into gradients that are infinite or NaN, `p.grad[torch.isnan(p.grad)] = 0`, `p.grad.nan_to_num_()`.

        ## Why
        The loss scale is found by trying: a step whose gradients overflow is skipped, the first ones of a run often.
        Until the next backward pass they stay infinite or NaN, and a histogram has no bins for these: TensorBoard's
        raises where a tensor holds nothing else, NumPy's at the first. What `wandb.watch` logs are the gradients of the
        scaled loss, before they are unscaled and before the ranks average them. A sum that was infinite once stays so.
        Between numbers that are infinite a percentile is NaN, and clipping by it makes all weights NaN.
        Anomaly detection raises at the first NaN of a backward pass, so the script ends where a step would be skipped.
        And the scaler looks for what is no number when it makes gradients true, which is before they are mended: it
        skips that step, which the script makes in full precision. With zeros in their place it would not learn that its
        scale is too large.

        ## What to do by hand
        Leave the record out then: `if torch.isfinite(p.grad).all():` above a histogram, `if torch.isfinite(norm):`
        above a sum. In full precision that changes nothing. Turn anomaly detection on for debugging at O0 alone. Where
        gradients are NaN for another reason than an overflow, mend that in the model or the loss: after many skipped
        steps in a row the scaler raises an error.
        """,
    notes.UNSAVED_SCALE: """
        A checkpoint that training goes on from holds no loss scale.

        ## What is noted
        An optimizer gets its state back from a checkpoint, and AMP118 could not add the scale to that: a list holds
        the states, something goes over all keys of the dictionary, or its keys are not known. Nothing is said with
        `--dtype bf16`, which scales nothing, and where the script asks its scaler, or Apex, for a state. A script for
        Apex is told where `amp.initialize` makes a scale that changes in training.

        ## Why
        A run that is resumed starts from a scale of 65536 again. Where training had settled at 1024, the first six
        steps overflow and are skipped; where the scale had grown, small gradients are lost until it has grown again.

        ## What to do by hand
        Save `amp.scaler.state_dict()` where the state of the optimizer is saved, and give it to
        `amp.scaler.load_state_dict(...)` where that is loaded, unless the checkpoint is an old one without it.
        """,
    notes.OWN_STEP: """
        A step of the script's own mixed precision goes wrong.

        ## What is noted
        In a script that keeps its own autocast and scaler: gradients that are clipped, read or changed while they are
        multiplied by the loss scale, a second `unscale_`, steps without `update`, steps and backward passes of which
        only one goes through the scaler, a step inside of the autocast region. These are rules of amp-lint, whose code
        the note gives: AMP811 to AMP815, AMP819, AMP824 and AMP827. Beside `FullyShardedDataParallel`, a scaler and a
        clipping by the norm that see the shard of their own process alone; and binary cross entropy of probabilities
        within a region of its autocast, which raises an error on CUDA. A checkpoint that training goes on from, with
        the state of the optimizer and none of the scaler.

        ## Why
        Such a script is not migrated, so what it does wrong stays. Clipping to a norm of 1 while the loss scale is
        65536 makes the step 65536 times too small, in silence.

        ## What to do by hand
        What the note says; `amp-lint --explain AMP811` tells more, and `amp-lint --fix` mends some of them.
        """,
    notes.NEXT_METHOD: """
        An iterator of a loader has no method `next`.

        ## What is noted
        `batches.next()` where `batches` is `iter(loader)` of a `DataLoader`, once for each variable of a script that is
        migrated.

        ## Why
        PyTorch 1.13 took the method out, and the new code needs a later one: the call raises AttributeError.

        ## What to do by hand
        `next(batches)`, which `--modernize` writes too (AMP508).
        """,
    notes.REFUSED: """
        A current PyTorch refuses what the script does at a place.

        ## What is noted
        Of a script that is migrated and was not asked to be modernized, what raises an error since PyTorch, NumPy or
        Python have changed, and what `--modernize` has a rewrite for: `torch.load` of a pickled model, a mask of bytes
        for `masked_fill`, `np.int`, `collections.Iterable`, `torch._six` and so on. Once for each kind, at the first
        place that the script can come to; not within `try`, or where the script asks for a version. And
        `next(self.parameters())` in the forward pass of a model that `nn.DataParallel` still spreads over several GPUs:
        its replicas list no parameters since PyTorch 1.5. And `optimizer.get_lr()` where an option makes the optimizer
        one of Apex's, which has no such method: the script ended there with Apex, too. And
        `assert torch.__version__.startswith("1.")`, which holds for no version that the new code runs with.

        ## Why
        The new code needs PyTorch 2.4 or later. Where the script ran with an older one until now, it stops there, and
        not because of the migration.

        ## What to do by hand
        Run the migration with `--modernize`, or change the place as the page of the code in brackets says.
        """,
    notes.NOT_REACHED: """
        The script ends above its training, or within.

        ## What is noted
        `exit()`, `sys.exit()`, `quit()` or `os._exit()` under no condition, in a file or a function that trains below.
        And a name that is read in such a function, and that its file neither binds nor imports: `FusedSGD(...)` below
        `from apex.optimizers import FusedAdam`.

        ## Why
        Such a line is left from a look at the model or the data. What stands below is migrated, and nothing runs it: a
        run without an error says nothing of the new code. A name that is defined nowhere raises a `NameError`, with or
        without the migration; where it stands in a branch, the runs that come there stop.

        ## What to do by hand
        Take the line out, or put it behind an option. Import the name from where it is, or write the one that was
        meant.
        """,
    notes.NOT_READ: """
        The module of a model is named when the script runs, and was not read.

        ## What is noted
        `importlib.import_module(args.model)` whose module makes the model, where neither the option's default nor the
        rest of the name leads to files of the project.

        ## Why
        The training step is migrated, and the model is not known. A kernel of its own that takes float32 alone raises
        for the half features that a layer gives under autocast, and computations that need FP32 are not found.

        ## What to do by hand
        Give the option a default that is there, or look through the model: `@amp.float_function` above what has to
        compute in FP32. A run at `AMP_OPT_LEVEL=O0` shows whether the rest is right.
        """,
    notes.NPU_LEFT: """
        What asks for an NPU, or for `mps` and never CUDA, stays.

        ## What is noted
        Names of `torch_npu` and `torch.npu`, `.npu()`, the device `"npu"` and the backend `"hccl"`, once for each file
        of a script that is migrated. Also `torch.device("mps")`, once, in a script without a word of CUDA.

        ## Why
        The runtime trains on CUDA and on the CPU. What Ascend's version of Apex has is rewritten as Apex is; an NPU
        that is asked for by its name is not, since there is none where the script is to run. A script that takes `mps`
        or the CPU leaves the GPUs of a machine idle, one that takes `mps` alone ends there with an error, and no
        process group of torch takes tensors on `mps`.

        ## What to do by hand
        Write `.to(amp.device())` for `.npu()`, and `amp.device()` for `torch.device("mps")`. Take the calls of
        `torch.npu` out, and let `amp.init(ddp=True)` make the process group. The page *From Ascend* has a table.
        """,
    notes.IDLE_COMMENT: """
        A comment `# amp: skip` has no effect.

        ## What is noted
        A comment that leaves no edit out, or that cannot be followed: codes that do not stand in brackets, a bracket
        that is not closed, a code that there is not.

        ## Why
        Whoever wrote it meant to keep something as it is. It was rewritten, or there was nothing to rewrite.

        ## What to do by hand
        Write `# amp: skip` or `# amp: skip[AMP301]` at the end of a line of the statement, or take the comment away.
        """,
    notes.PLAIN_TORCH: """
        What a migration loses in plain PyTorch.

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
        The script got no option for the level.

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
        What `--quantize` leaves out, and why.

        ## What is noted
        With `--quantize`: why a script got no int8 model, and at which place. It is migrated all the same. Of a script
        that got one: why it is not evaluated, and which lines do that; that the model which the script saves on a
        condition, as its best, is not loaded before; and, for `qat`, that it is not known where to freeze the ranges.

        ## Why
        The model is quantized when all training has ended, and evaluated with the script's own function before and
        after. Where that end is not one place, the lines would fail after hours of training. Where no function can be
        called once more with another model and nothing left behind, there is no number to compare. For `qat` the model
        becomes an exported graph, which has no parts and methods of the script's class.

        ## What to do by hand
        Write the evaluation as a function that takes the model and a loader and gives a number, and call it below the
        training loop. Or add the lines yourself: `quantized = amp.quantize(model, "static", calibration=loader)`, an
        evaluation of it, and `amp.save_quantized(quantized, path)`.
        """,
    notes.BATCH_SIZE: """
        The batch of all processes is larger than that of one.

        ## What is noted
        The loader of the training step, once for the script. Each process makes batches of the size in the script, so
        each step of N processes averages over N batches, and an epoch has 1/N as many steps. The learning rate is not
        changed. Also a batch size that is multiplied by the number of GPUs, where `DataParallel` is removed: one
        process took a batch for N GPUs. Now each of N processes has one GPU and would still take a batch for N, N*N in
        all. Also a loss that is divided by the number of GPUs there, to average what `DataParallel` gathered. Also
        batch norm that AMP230 synchronises in a script with its own distributed training, or that took the share of
        each GPU under `DataParallel`, once for the script.

        ## Why
        The right learning rate for a batch that is N times as large depends on the model and the optimizer. Linear
        scaling with a warmup is usual for SGD; square root scaling, or none, for Adam. See
        https://arxiv.org/abs/1706.02677.

        ## What to do by hand
        To keep the steps as before, divide the batch size by the number of processes. Or keep the batch size, and try a
        learning rate up to N times as large, with a warmup. `--no-sync-bn` leaves batch norm as it was.
        """,
    notes.EVALUATION: """
        Each process evaluates all samples, or a share of them.

        ## What is noted
        A loader outside of the training step: either every process evaluates all of its samples, or each evaluates a
        share. Where there is none, a loop that evaluates by index, or on batches of the script's own.

        ## Why
        If every process evaluates all samples, all processes have the metrics of one process, and evaluation is not
        faster. If each process evaluates a share, a metric that is not reduced covers only that share.

        ## What to do by hand
        Nothing, if the time of an evaluation does not matter. `--shard-eval` splits it across the processes where the
        metrics stay those of one process (AMP223). By hand, iterate over `amp.share_evaluation(loader)`. Then combine
        counts with `amp.sum_evaluated` and lists with `amp.gather_evaluated`, before computing metrics from them.
        """,
    notes.BLOCKS: """
        Which parts of a sharded model are whole at a time.

        ## What is noted
        With `--shard`, each model that is prepared, and the classes of its repeated blocks as far as the text names
        them: modules of one class that occur more than once in an `nn.ModuleList` or `nn.Sequential`.

        ## Why
        It decides how much memory is needed. The weights of a block are whole while the block runs, forward and
        backward. Weights outside of blocks are whole while the model runs. Without repeated blocks, the whole model may
        be in memory at once.

        ## What to do by hand
        Nothing, where blocks are named. Else look at what `amp.init(verbose=True)` prints: the runtime looks at the
        model itself. Layers of one kind in an `nn.ModuleList` or `nn.Sequential`, which the model calls one by one, are
        found.
        """,
    notes.AVERAGED: """
        How gradients are averaged where the plain wrapper does not do.

        ## What is noted
        Why `amp.prepare_model` is given `delay_allreduce=True`: gradients are averaged once, when the optimizer steps.
        Or why it is given `find_unused_parameters=True`, in a script whose own scaler steps, or whose model is sharded.

        ## Why
        `DistributedDataParallel` averages during the backward pass, and wants one forward and one backward pass for a
        step, with a gradient for every parameter. Where several models are trained together, a step has several
        passes, or a part may be left out of one, it raises an error or waits forever. A trainer and a sampler that hold
        one network are prepared both, and share its parameters: only one wrapper could average them.

        ## What to do by hand
        Nothing: it is right as it is written. Where the reason does not hold, because a part that looks left out is
        always trained, take the argument out: the exchange then runs beside the backward pass, which is faster.
        """,
    notes.TABLES: """
        Which embedding tables are sharded by rows.

        ## What is noted
        With `--shard-embeddings ROWS`, each `nn.Embedding` and `nn.EmbeddingBag` of the script: whether it is sharded,
        by the number of rows in the code, and which tables stay whole.

        ## Why
        A number of rows often comes from the data or the command line. `amp.shard_embedding(model, min_rows=ROWS)`
        checks it when the script runs, and leaves smaller tables as they are.

        ## What to do by hand
        Nothing. `amp.init(verbose=True)` prints which tables are sharded. `--shard-embeddings` with another number
        selects other tables.
        """,
    notes.NOT_SHARED: """
        An evaluation that is not split across the processes, and why.

        ## What is noted
        With `--shard-eval`, an evaluation loop that every process still runs in full, and what in it was not
        understood.

        ## Why
        Split across processes, its result might differ from that of one process. A loop that ends early has seen other
        batches, random numbers differ between processes, and an unknown object may collect results that nothing
        combines. In full on every process, the metrics are right, and take as long as on one.

        ## What to do by hand
        Nothing, if the time of an evaluation does not matter. Otherwise change the place that the note names, so that
        the loop only adds up and appends; or iterate over `amp.share_evaluation(loader)` and combine the results.
        """,
    notes.TOTALS: """
        A number covers the data of one process only.

        ## What is noted
        A count, a total or an average that is printed, logged, drawn or written to a file, here or by a function that
        gets it; what is kept of the samples by their names; and a list of outputs of which a score is shown. Before the
        migration it covered all data; now it covers the batches of one process. Where a loop shows nothing of that
        kind, but the loss of its last batch, that is noted: of N batches it is the one of the process that shows it.
        One note, at the first place, names all numbers of a kind. So is a run of a tracking service that each process
        begins, because the script takes its configuration or data from it, and a state of a metric of torchmetrics that
        is not reduced over the processes.

        ## Why
        Training does not change. But to read the number, or to compare it with an earlier run, you have to know what it
        covers.

        ## What to do by hand
        Reduce it with `amp.reduce_sum(value)` or `amp.reduce_mean(value)`, at a place that every process reaches; or
        multiply a count by `amp.world_size()`.
        """,
    notes.LOSS_OVER_BATCH: """
        A loss uses the batch of one rank only.

        ## What is noted
        A loss that compares the samples of a batch with each other: contrastive losses, triplets that are mined from
        the batch, batch statistics, such as the entropy of a mean. Also a loss that is a sum over the batch and is
        divided by a constant at most. The first place of each kind is named. So is each variable outside of the model
        that keeps something of the batches for later losses: a running centre, a radius, a balance of two losses.

        ## Why
        Each process computes the loss over its own batch, and gradients are averaged. With N processes a sample is
        compared with as many others as before, not with N times as many. The average of N sums is as large as the sum
        over one process's batch, not as the sum over all samples. So a step stays as large as it was, as with a mean.
        What a variable keeps differs between the processes, and the main process saves its own.

        ## What to do by hand
        Nothing, if the batch of one process is as large as before. To compare the samples of all processes, gather the
        features before the loss is computed, with a function that propagates gradients. To keep the same on all
        processes, average it where it is kept: `center = amp.reduce_mean(center)`.
        """,
    notes.STEPS: """
        What runs every N steps runs less often in an epoch.

        ## What is noted
        A number of steps in the script: an evaluation every 500 steps, a schedule of 10000 steps, a function that sets
        the learning rate by the step, a weight or a temperature that follows it, or that each step scales by
        `rate *= 0.99`. With N processes an epoch has 1/N as many steps, and the batch of all processes together is N
        times as large. One note names all numbers of a loop. A number of steps that ends the training is not noted: as
        many steps are made as before; that there are N times as many epochs is, where their number is worked out of it.
        So are the first batches that an epoch is made of, `itertools.islice(loader, 12)`, or up to
        `if step >= 12: break` where each epoch counts anew: each process takes as many.
        A number of samples that ends it is noted, too, as each process counts its own: `while seen < limit:`; and one
        that a number is worked out of, `rate * (1 - seen / total)`. Also a quotient of the dataset's length in a
        training loop, if it is not known whether it counts steps. And a test of the loader's length that ends the
        script, `assert len(loader) % 10 == 0`: the loader is as long as one process's share.

        ## Why
        An epoch has fewer steps, so it has fewer evaluations, and a schedule that is stepped with the optimizer gets
        less far in the same number of epochs. Only the author knows whether the number means steps or samples.

        ## What to do by hand
        Nothing, if the number means steps. Otherwise divide it: `max(1, 500 // amp.world_size())`. Numbers that are
        computed from the dataset's length and the loader's batch size are divided already (AMP221); wrap other numbers
        of steps in `amp.share_of(...)`.
        """,
    notes.OWN_LEFT: """
        A part of the script's own distributed code is left as it is.

        ## What is noted
        With `--ddp`, in a script that creates its own process group: a place that one of AMP230 to AMP239 would
        complete, and what was not understood about it. The note begins with that code. A note without a code names an
        error in the script that no rewrite fixes: a process group that is created twice, a forward pass through
        `DistributedDataParallel` on one process only, a loss of the model inside it (`model.module.loss(x)`), whose
        gradients nothing averages (AMP914), gradients that `torch.autograd.grad` gives and the script puts into the
        parameters, an evaluation on one process only that sees its share of the data, a value that one process computes
        or loads from a checkpoint and the others then use, a loop that only one process leaves, or a step that it
        leaves out by its own loss. A sum of its own batches that one process shows is named, too. Others are a
        collective operation that one process runs alone (AMP910), a file that all read while one may still write it
        (AMP911), data that all download (AMP912) or split in their own way, a command that changes files, `torch.load`
        without `map_location`, a learning rate that follows a process's own share of the data, a schedule as long as
        the batches of the whole data, a number of processes or a GPU that the script writes out, models that all
        processes put on the current GPU while nothing chooses it, weights that each process draws itself, a test for
        the first process above the process group, the local rank given where the rank among all belongs, a test of the
        option `--local_rank` in processes of SLURM or MPI, which pass none, a seed of the process that spawns the
        others, parts of a wrapped model in `nn.DataParallel`, a model that moves to its GPU once it is wrapped
        (AMP913), and something else than a number where a sampler takes the number of processes. So are a step that may
        fail on one process while that goes on, and a sampler, torch's or the script's own, that repeats samples for an
        evaluation whose numbers are added up over the processes.

        ## Why
        The script runs as before. A rewrite is made only if everything about it is certain: which value is the rank,
        which loader trains. An error in the script stays, because a fix would need to know the intention.

        ## What to do by hand
        Write what the page of the code shows, or leave it: `--ignore` with that code removes the note. If the note has
        no code, do what it says; let every process compute a value, or send it from rank 0 with
        `torch.distributed.broadcast`.
        """,
    notes.APEX_KEPT: """
        A part of Apex stays: its interface, which the runtime has, or an extension, which it has not.

        ## What is noted
        Only the imports were changed, because of `--apex compat`, or because of a place that was not understood, which
        the note names. A note with a line number names an extension of Apex's build that is loaded directly there
        (`fused_adam_cuda`), as copies of Apex's own classes do, without a fallback, an import in a `try` that stays
        because the runtime does not have what it imports, or a wrapper that stays Apex's because PyTorch's is not
        enough, with the reason.

        ## Why
        The runtime has the same interface, so the script trains without Apex. It does not have the extensions: code
        that uses one runs only where Apex was built with it.

        ## What to do by hand
        Nothing. To remove the interface, change the place that the note names, and migrate again. Replace a copied
        class by the runtime's class, if the note names one.
        """,
    notes.APEX_LEVEL: """
        The script keeps the level that it gave to Apex.

        ## What is noted
        A script that called `amp.initialize` with an `opt_level` of its own, which is kept. Of a script with half
        precision by hand, also what is not as it was: the state of its `FP16_Optimizer`, and functions that computed
        in half.

        ## Why
        Its author chose the level. `--opt-level` is for scripts that have none.

        ## What to do by hand
        Change the level in `amp.init(...)`, or set `AMP_OPT_LEVEL` for a run.
        """,
    notes.OLD_TORCH: """
        A script for Apex is updated to a current PyTorch.

        ## What is noted
        Rewrites of AMP5 that were made without `--modernize`, because the script uses Apex: names and calls that a
        current PyTorch refuses or has renamed. Names that still work, such as `Variable`, stay. There may be other
        reasons why the script stops on a current PyTorch.

        ## Why
        Such scripts were written for PyTorch 1.0 to 1.4. Without Apex they would still stop, at
        `correct[:k].view(-1)` or `from torch._six import inf`.

        ## What to do by hand
        Nothing. `--no-modernize`, or `modernize = false` in `[tool.amp-migrate]`, leaves those places as they are.
        """,
    notes.APEX_ELSEWHERE: """
        A script that is not migrated shares a module that keeps the loss scale.

        ## What is noted
        A module that scaled the loss with Apex, or saved `amp.state_dict()` in checkpoints, was migrated for one
        script. Another script imports the module and calls Apex's `amp.initialize` itself, or steps the optimizer
        itself where the module starts Apex too, but was not migrated in this run. So is a script that has a function
        of the module start Apex, and only runs the model, and one that starts Apex and shares functions under Apex's
        `float_function`.

        ## Why
        The migrated module scales by `amp.scaler`, which waits for `amp.init`. A script that starts Apex instead
        would train in half precision without a loss scale, and its checkpoints would hold none. A script that only
        steps would step with gradients that are multiplied by the scale. At O1 Apex patched PyTorch for all that ran
        after it; the runtime computes in half precision only within `amp.autocast()`. Without `amp.init` its
        `float_function` casts nothing.

        ## What to do by hand
        Migrate the scripts together, in one run: `amp-migrate first.py second.py`. Where a script does not train, put
        its forward passes into `with amp.autocast():`.
        """,
    notes.APEX_OPTION: """
        An option chooses Apex, which turns nothing on any more, or cannot run.

        ## What is noted
        A script with torch's mixed precision went on without Apex (AMP414). An option that is named for Apex, or a
        value of one, is left in its parser: commands that give it still work. So is a warning that is left and tells to
        install Apex. Where the branches for Apex could not be taken out, the options that choose them are named too,
        and whether they do by default.

        ## Why
        `apex.amp` can no longer be imported. What the option does now is what it did where Apex was not installed: in
        most scripts nothing, or a warning that it trains in full precision. Branches that are left stop the script.

        ## What to do by hand
        Choose torch's mixed precision in commands that gave the option, or take the option and the warning out. To keep
        both ways, with the runtime in Apex's place, migrate with `--apex compat`.
        """,
}


def all_noted() -> list[Rule]:
    """Everything that can be noted, by code, with its page."""
    return sorted((replace(rule, page=cleandoc(page)) for rule, page in _PAGES.items()), key=lambda rule: rule.code)
