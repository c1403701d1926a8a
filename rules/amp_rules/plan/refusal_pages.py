"""The pages of the reasons for declining: what is refused, why, and what to do by hand."""

from __future__ import annotations

from dataclasses import replace
from inspect import cleandoc

from amp_rules.plan import declining, notebooks
from amp_rules.plan.rule import Rule

_PAGES = {
    notebooks.MAGIC: """
        A statement that must be rewritten is run by a line of IPython's.

        ## What is refused
        The notebook, where a training step or something else that changes stands behind `%time`, `%prun` or the like.

        ## Why
        Such a line is one call of IPython's with the statement as its text. The rewritten statement takes several
        lines, which would not be put back into it.

        ## What to do by hand
        Write the statement without the magic, then migrate again. A cell magic (`%%time`) on top of the cell is no
        obstacle.
        """,
    declining.ALREADY_MIXED: """
        The script has its own mixed precision, and keeps it.

        ## What is refused
        The precision of a script that uses `torch.amp` or `torch.cuda.amp`, that makes its model half by hand in a way
        which is not understood as a whole (what is becomes a level, AMP420), or that shares a module which was migrated
        with another script in an earlier run. Where some steps have an autocast and a scaler, and others run beside
        them without, the reason names those: a step of another branch, which runs in the place of one, does not count.

        ## Why
        A second scaler would scale the gradients twice, and a half model has no full-precision weights to go back to at
        O0. A module that was migrated for one script must not be decided on a second time for another.

        ## What to do by hand
        With `torch.amp` there is nothing to do; `--ddp` gives such a script several processes and leaves its scaler the
        only one. Remove `model.half()`, and migrate with `--opt-level O2`. Migrate scripts that share modules in one
        run: `amp-migrate --undo` takes the earlier run back.
        """,
    declining.NOT_IN_TORCH: """
        Plain PyTorch cannot express something.

        ## What is refused
        With `--target torch`, a script that needs what only the runtime does: gradients that are averaged at the step,
        a model's method called in place of `forward`, loaders whose samples DistributedSampler cannot share out, a
        scaler that would have to be passed to functions whose callers are not all known.

        ## Why
        Code that cannot be written well in plain PyTorch is left unchanged. If only the distributed part cannot be
        written, the precision is migrated.

        ## What to do by hand
        Migrate with the default, `--target runtime`, which does it, or rewrite the place that is named; then migrate
        again.
        """,
    declining.DRAFT: """
        The tool's own check found a bug in its draft.

        ## What is refused
        A draft that would be a wrong program. Before anything is shown, the tool compares each new text with the
        original and checks it: no part of the original may be lost or moved; every name that new code reads must be
        bound on every path to it; the runtime must be imported and started before it is used; a model must be prepared
        before it is trained, and a loader before its loop; gradients must be unscaled under the same conditions as
        their optimizer's step; and the scale must be updated in each iteration with a step.

        ## Why
        Each finding of this check is a bug in amp-migrate, never in the script. An unchanged file costs less than a
        wrong one. If the draft is right without the changes for distributed training, the precision is migrated.

        ## What to do by hand
        Report it, with the lines around the place that is named. Until it is fixed, write these lines by hand, or move
        the statement out of its condition or function.
        """,
    declining.CLOSURE: """
        The optimizer evaluates the loss by itself, in many cases several times a step.

        ## What is refused
        A step that is given something: `optimizer.step(closure)`, as LBFGS wants it.

        ## Why
        The loss is scaled, and the scale may change between two evaluations within one step; the optimizer would
        compare losses and gradients of different scales. Whether the step is to be skipped is known only after it.

        ## What to do by hand
        Keep this optimizer in FP32. Or run the forward pass of the closure under `amp.autocast()` in bf16, which needs
        no scale, and step with `amp.scaler.step(optimizer, closure)`, which does not scale the losses of a closure. All
        optimizers of PyTorch but LBFGS evaluate a closure once, above their update: call it yourself,
        `loss = closure()`, then `optimizer.step()`, and migrate again.
        """,
    declining.NO_OPTIMIZER: """
        Nothing steps after the backward pass: the gradients are used by hand.

        ## What is refused
        A script with `backward()` and no call of an optimizer's `step()` that could follow it: weights changed in a
        loop over `model.parameters()`, saliency maps, gradients written to a file. A script in which learn2learn,
        higher or torchmeta moves weights within the step.

        ## Why
        With a scaled loss these gradients are too large by the scale, and nothing would say so. Which of the script's
        lines use them cannot be told for certain where no optimizer does. The gradients that such a library takes of
        the loss of a task are not scaled at all.

        ## What to do by hand
        Use an optimizer of `torch.optim`. Where the gradients themselves are the result, leave the loss unscaled: bf16,
        or FP32.
        """,
    declining.UNKNOWN_STEP: """
        It is not known what a call of `step()` steps.

        ## What is refused
        A training step in which the object whose `step()` is called could not be followed to where it is made: it comes
        from a function of a package, from settings, or from a parameter that nobody passes. A step in a lambda, which
        has no place for the update of the scale. A step that is handed around as a value (`step = optimizer.step`,
        `stack.callback(optimizer.step)`, a table of methods) or reached by its name (`getattr(optimizer, "step")`,
        `operator.methodcaller("step")`, a wrapper with `__getattr__`). A step of the project's own class that is given
        more than a closure (`optimizer.step(anchors)`). Also a script without any backward pass that
        makes something by `hydra.utils.instantiate` or `pydoc.locate`, which may train, where the configuration was not
        found or read (`docs/projects.md` says what is).

        ## Why
        If it is an optimizer, it must be stepped by the scaler; if it is a scheduler or an environment, it must not. A
        step that something else calls would apply scaled gradients.

        ## What to do by hand
        The message names the call in which the trail ends. Make the object where it can be followed: import its class
        and call it in the project. Call `optimizer.step()` where it is to run. Or step it with
        `amp.scaler.step(...)` yourself.
        """,
    declining.UNKNOWN_LOSS: """
        The computation of a loss was not found.

        ## What is refused
        A step whose loss comes to `backward()` from where the program could not be followed: through a container filled
        elsewhere, an attribute that another thread sets, a generator of a package. A backward pass that is handed
        around as a value (`run = loss.backward`), reached by its name, or asked of an object that hands it on.

        ## Why
        The forward pass and the loss are to run under autocast. A region in the wrong place trains in FP32 at best, and
        computes a part of the loss in half that must not be at worst.

        ## What to do by hand
        Put `with amp.autocast():` around the forward pass and the loss; then scale, step and update with `amp.scaler`,
        as AMP102, AMP103 and AMP104 show.
        """,
    declining.GRADIENT_ACCESS: """
        Gradients are used where they are still scaled, or may be.

        ## What is refused
        Hooks that read gradients (`register_hook`, `register_full_backward_hook` and the like), or change them where a
        wrapper exchanges them (`register_comm_hook`); hooks of wrappers that keep something of the gradients from step
        to step, as those of PowerSGD do, or are not known to keep nothing;
        backward passes that begin with a gradient another one left; clipping, logging and edits of gradients if the
        optimizer that holds them is not known; gradients of tensors that no optimizer holds, such as inputs and hidden
        layers; functions that reach gradients by a name and are called elsewhere; weights that the script itself
        changes by their gradients; gradients that `torch.autograd.grad` gives and the script sets (`p.grad = g`), where
        there is no backward pass. A sign, a comparison with zero, and a tensor's hook that multiplies its gradient do
        not depend on the scale, and are accepted. So is adversarial training that moves a weight by
        `epsilon * p.grad / norm` under a condition on that norm (FGM, PGD), with nothing else under the condition: a
        number that is added to the norm, or a copy of the weight that is made there, is refused. A sign is not
        accepted if it is of an input's gradient and no step follows, as in an attack on a model during evaluation: if
        the gradient overflowed, nothing would lower the scale. Nor are gradients that a loop reads and clears in each
        round without a step, as for the squares of a Fisher information: what overflowed would stay in them. Where a
        function clears them by `model.zero_grad()`, and each round of the training clears before its backward pass,
        that function stays in FP32 and without a scale (AMP186).

        ## Why
        In fp16 the loss is multiplied by 65536 or so before the backward pass. Code that reads a gradient before it is
        unscaled gets a number that is wrong by that factor: clipping cuts everything, and a logged norm means nothing.
        `unscale_` divides only the gradients of one optimizer's parameters. If gradients overflow, the scaler skips the
        optimizer's step, but not a line that adds gradients to the weights.

        ## What to do by hand
        Call `amp.scaler.unscale_(optimizer)` once, after the backward pass and before the first use of the gradients.
        Of a tensor that no optimizer holds read `amp.scaler.unscale_gradients(tensor.grad)`. In a hook divide by
        `amp.scaler.get_scale()`.
        """,
    declining.UNKNOWN_MODEL: """
        The model that an optimizer trains was not found.

        ## What is refused
        A step whose optimizer trains parameters of a model that was not found in any variable: a model in a container
        of a package, a tensor that is optimised itself (an image, for example), a model that is constructed by a name
        from a configuration.

        ## Why
        O2 and O3 convert the model, and distributed training wraps it. So `prepare_model` needs a variable that all
        later uses read.

        ## What to do by hand
        Write `model = amp.prepare_model(model)` where the model is on its device and has its weights, and pass `model`
        on from there. The optimizer may be built before or after that, with shards after it.
        """,
    declining.OTHER_FRAMEWORK: """
        A framework other than PyTorch trains.

        ## What is refused
        Scripts that import Paddle, MindSpore, TensorFlow, JAX, MXNet or Chainer and no torch; scripts that import both,
        where only the other framework computes gradients.

        ## Why
        Autocast, loss scaling and DistributedDataParallel are PyTorch's. The other framework has words of its own for
        each of them.

        ## What to do by hand
        Use what the message names, in that framework. Once the model and the training step are written in PyTorch,
        migrate the script.
        """,
    declining.FRAMEWORK: """
        A framework runs the training step, or shards the model.

        ## What is refused
        Scripts that use Accelerate, Lightning, DeepSpeed, Ignite, fastai, Composer, the `Trainer` of transformers and
        the like; FSDP, tensor and pipeline parallelism of torch; RPC to other processes; gradients that Horovod
        averages, other than by `hvd.allreduce` behind the backward pass.

        ## Why
        A framework has mixed precision and several processes of its own, and calls `backward()` and `step()` where the
        script does not show them. A sharded model keeps a shard of each gradient on each rank, which a single scaler
        cannot check; nor does it see what RPC has others compute, nor the processes of Horovod, whose optimizer
        averages in `step`, after the scaler has unscaled.

        ## What to do by hand
        Turn mixed precision on in the framework's own options (`precision="bf16-mixed"`, `mixed_precision="fp16"`), or
        in the mixed precision policy of the sharded model. In place of Horovod, let `DistributedDataParallel` average.
        """,
    declining.UNREADABLE: """
        A module that the step needs cannot be read.

        ## What is refused
        A script that imports a module of the project which is Python 2, has a syntax error, an unknown encoding, or
        more than 2 MB, or that uses torch's old `Pipe` (`torch.distributed.pipeline`), which current PyTorch has no
        more. Where no backward pass was found: one that calls, or hands on, something named for training whose import
        leads to no file of the project. Where gradients are used, or a model is not known: an optimizer that is made by
        what such an import gives.

        ## Why
        What the module holds is not known: it may be the model, or a second training step.

        ## What to do by hand
        Fix that file first; the message names it and the line. `--modernize` reads files that only use `async` as the
        name of an argument. A module that was not found is found by `sys.path`, by packaging, or by a `PYTHONPATH` in a
        script of the project; of an installed library, migrate the file that trains.
        """,
    declining.ASKED_PRECISION: """
        A comment or an option leaves out a part of the training step.

        ## What is refused
        The whole step, where a comment `# amp: skip`, `--ignore` or `--select` leaves out one of its rewrites that is
        not optional.

        ## Why
        Half a step would be wrong: for example a scaled loss with an optimizer that does not unscale.

        ## What to do by hand
        Let the comment name only what can be left out (`# amp: skip[AMP301]`), or rewrite that place by hand as the
        page of the rewrite shows. `--ignore AMP1` leaves mixed precision out altogether; for distributed training in
        full precision use `--ddp --opt-level O0`.
        """,
    declining.OWN_DISTRIBUTION: """
        The script has its own distributed training, and keeps it.

        ## What is refused
        The distribution of scripts that use `torch.distributed`, `DistributedDataParallel`, Horovod or XLA, start
        processes with `multiprocessing`, or share a model's memory between them. An import without a use does not
        count. Three more cases are declined: code that uses a process group which nothing creates, processes whose
        gradients nothing averages, and scripts of one process that start other processes beside the training. Code that
        only asks whether there is a group, and for its rank, as a logger does, is not declined. Nor are helpers that
        ask for a group first, and then wait, average what carries no gradient, or add up counts with their totals.

        ## Why
        With two ways of starting processes and averaging gradients in one script, gradients are averaged twice, or the
        processes hang. Each rank would start its own copy of a process that the script starts for its data or its log.

        ## What to do by hand
        If the script uses `torch.distributed`, AMP230 to AMP239 add what is missing. The reason says whether they found
        nothing to add, or that notes (AMP288) name what is left. Other kinds of processes are not checked. The
        precision is migrated in any case. If the script's own set-up is complete, keep it. To use the runtime's
        instead, first remove the set-up and all that uses it (`model.module`, ranks, samplers), so that the script
        trains in one process. Then migrate it, and start it with `torchrun`. Keep the set-up in a module that other
        scripts share.
        """,
    declining.HAND_BATCHES: """
        Batches are made in a way that cannot be split across processes.

        ## What is refused
        Training data that neither a `DataLoader` feeds nor a list, a generator or a range over slices that the loop
        iterates: files read by the loop itself, slices whose losses are added up to one step, or of which the place
        decides (`if i + size > len(x): break`). A step on all of the data at once, as on one graph: there are no
        batches to share. A loop that
        counts the batches of an epoch by hand (`for i in range(size // batch_size)`) and takes them by `next`, or
        any number of batches of an iterator that nothing begins anew. One loop that trains or evaluates by a flag, over
        loaders that cannot be distinguished, or one generator that yields the batches of both. A table with a row for
        each sample (`bank[index] = features`) that something reads. A queue of samples of earlier batches that the step
        reads (`queue[:, ptr : ptr + n] = keys.t()`). A loader that each round makes anew for one batch, as few-shot
        tasks are drawn: `next(iter(task_loader))`. Labels beside a loader that does not shuffle, looked up by the
        number of the batch: `labels[i]` of `for i, x in enumerate(loader)`.

        ## Why
        Every process would train on the same batches, so N processes would do N times the work for the same result. Or
        a loop would ask for more batches than a process has. Or evaluation would use only a part of its data. Rows of a
        table that other processes write would not be updated, and labels would be those of other samples. Batches that
        are drawn at random are fine: each process draws its own.

        ## What to do by hand
        Put the data in a `Dataset` and a `DataLoader`, or give each rank its share by `amp.rank()` and
        `amp.world_size()`. Count with `len(loader)`. Wrap the training loader in `amp.prepare_loader(...)` where it is
        made, and leave the one for evaluation. Write the rows of all: `bank[amp.gather(index)] = amp.gather(features)`.
        Put `amp.gather(keys)` into a queue. Draw whole tasks on each rank, with `amp.seed_by_rank()` before the loop.
        """,
    declining.NEEDS_PRECISION: """
        Several processes need a training step that was understood.

        ## What is refused
        The distribution, where the precision is declined; the message repeats the reason. Also that of a script which
        was migrated before without `--ddp`, or which keeps Apex's interface.

        ## Why
        Gradients are averaged at the step, which the runtime has to run; and a step that is not understood for one
        process is not understood for several.

        ## What to do by hand
        Deal with the reason for the step first. Migrate the original script with `--ddp` where it was migrated without:
        `amp-migrate --undo` puts it back.
        """,
    declining.GRADIENTS_OUTSIDE: """
        A model cannot be prepared for several processes.

        ## What is refused
        An optimizer that trains parameters which belong to no model, or copies of a model's; a script that requires
        `DataParallel` (`assert isinstance(model, nn.DataParallel)`) or spreads a model over GPUs by hand (`replicate`,
        `parallel_apply`); a model that is prepared under a condition, and trained without it too; one that a script for
        Apex trains and does not give to `amp.initialize`; a script with the scaler of `torch.amp` whose gradients could
        be averaged at the step only; a loss that writes buffers of its own and is held by no variable; a model that
        comes from a script which is not part of the program; a layer that each forward pass makes anew, and a parameter
        that it puts in the place of one (`self.fc.weight = nn.Parameter(...)` in `forward`); a table of embeddings with
        `max_norm`; layers of a library whose weights are no plain parameters, such as hypll's; a backward pass that
        looks at the model outside of the training, as Grad-CAM does; a model that is trained with other weights than
        its own, `functional_call(model, weights, (x,))`.

        ## Why
        Nothing averages the gradients of parameters outside of a prepared model, so the processes silently diverge. The
        same holds for running centres and means that a loss keeps. A layer that is made in a forward pass draws
        different weights on each process. A parameter that was replaced no longer belongs to the model when the
        optimizer steps it. With `max_norm` each process shortens the rows that it looks up, in its own copy.

        ## What to do by hand
        Make layers in `__init__`, and write into parameters. Put loose parameters into an `nn.Module`, for example the
        one that uses them. Remove code that is meant only for `DataParallel`: each process has its own device. Move
        `amp.init(...)` and `amp.prepare_model(...)` out of the condition, with the condition in `enabled=`.
        """,
    declining.LOCAL_DECISION: """
        Each process would decide by its own values what it trains on.

        ## What is refused
        A value that differs between processes in a place where all processes need the same value: a condition around a
        step or a wait for a file, the number of iterations of a loop with steps, a learning rate, weights. The message
        names the value and the line that it comes from: a batch, a random number, a clock, an environment, or a call
        such as `os.mkdir` that fails on some processes only. An order or a split of the data that is drawn without a
        seed above `amp.init`, as a file that is imported does: `np.random.shuffle(paths)`. Adversarial training is
        refused too if it moves weights along gradients that are averaged only afterwards, at the step. So is a search
        for settings that runs the training, `study.optimize(objective)` of optuna or `wandb.agent(sweep, train)`,
        unless what chooses has a seed and the processes share no storage, or a condition chooses the search and the
        script trains without it, too.

        ## Why
        Each process has different batches, so one process would continue and another would not. The first then waits in
        a collective that the other never calls, and the run hangs. Different weights or learning rates raise no error:
        the copies of the model silently diverge.

        A number such as a loss is replaced by its mean over the processes (AMP211, AMP212). This is not done if the
        value says whether the process has any data, as in `if mask.sum() == 0: continue`: a process without data would
        have to take a step. It is also not done for flags, lists, and loops over data that only one process has.

        ## What to do by hand
        Decide by a number that is the same on all ranks: `amp.reduce_mean(value)`, or `amp.reduce_min(count) == 0` if
        no process may continue unless all can. Loop over a DataLoader, or over a range that is the same on all ranks. A
        check for infinite losses is not needed with a scaler: all ranks skip such steps together.
        """,
    declining.FILES: """
        Files cannot be left to one process.

        ## What is refused
        The distribution of a script that changes files in a way in which not one process alone can do it: a file or a
        database that is written and read through one object, a call that changes files and whose result is used, files
        that a data set keeps for its samples or a `collate_fn` for its batches, a loop that waits for a file, an
        archive that a module unpacks, and reads, when it is imported. Its precision is migrated.

        ## Why
        Several processes that write one file break it, so one of them writes. Where the others need what the writing
        gives them, or look for the file elsewhere, they would go on with something else, or wait for ever.

        ## What to do by hand
        Write such files before the training, or under `if amp.is_main_process():`, with `amp.barrier()` before the
        statement that reads them.
        """,
    declining.BATCHES_IN_A_ROW: """
        Each batch continues where the last one ended.

        ## What is refused
        A training loop over a loader without `shuffle=True` whose model is given what it computed for the batch
        before, such as the hidden state of an LSTM: `out, state = model(x, state)`. Also where the model keeps that
        itself. A dictionary of which each batch writes every entry before it is read carries nothing on, nor does a
        variable of a function that takes several steps on the one batch it is given.

        ## Why
        The processes share the batches out: each has every N-th of them, and a state from the one before would belong
        to another part of the data.

        ## What to do by hand
        Give each rank a part of its own of every sequence, by `amp.rank()` and `amp.world_size()`, or start the state
        anew with each batch. Where the batches are in no order, say `shuffle=True`.
        """,
    declining.NOT_SHARDED: """
        A model cannot be sharded over the processes.

        ## What is refused
        With `--shard`, a script that uses a sharded model in a way that needs it whole: it reads a weight, calls a part
        or a method of the model other than `forward`, copies the model, moves it to a device after the optimizer is
        built, uses its state for more than a checkpoint, reads gradients, calls `torch.autograd.grad`, or shares a part
        between two models. Also scripts with their own distributed training or scaler.

        ## Why
        Each process has a shard of every weight. The model is whole only during its forward and backward pass, block by
        block. Code that reads it at other times would compute with shards, or hang.

        ## What to do by hand
        Change the place that is named, or leave out `--shard`: `--ddp` keeps a whole model on each process.
        """,
    declining.TABLES_NOT_SHARDED: """
        Embedding tables cannot be sharded over the processes.

        ## What is refused
        With `--shard-embeddings`, a script whose large tables are used for more than lookups once the optimizer is
        built: a weight that is read or set, a weight or a table that two layers have, a copy of the model, a model that
        is saved whole or given to a function of a library, parameters that are counted or read. Tables with `max_norm=`
        or `scale_grad_by_freq=`, of a class derived from `nn.Embedding`, or made by `from_pretrained`; optimizers that
        use a norm of the whole table, and steps with a closure. Lookups that one process may run without the others: on
        the main process only, or a number of times that depends on its own batch; and a script that reads `RANK`. Also
        scripts with their own distributed training, level or scaler.

        ## Why
        Each process has a part of the rows, and a lookup asks the other processes for theirs. A lookup on one process
        only would hang, and code that reads the weight would get a part of it.

        ## What to do by hand
        Change the place that is named, or leave out `--shard-embeddings`: `--ddp` keeps whole tables on each process.
        [Large embeddings](../embeddings.md) says what the runtime supports, which is more than this rewrite.
        """,
    declining.ASKED_DISTRIBUTION: """
        A comment or an option leaves out a part of the migration to several processes.

        ## What is refused
        The whole distribution, where a comment `# amp: skip`, `--ignore` or `--select` leaves out one of its rewrites
        that is not optional, or the rewrites of the training step.

        ## Why
        Processes that all save, that all train on the same data, or that do not average their gradients are worse than
        one process.

        ## What to do by hand
        Ask for the rewrite that the message names as well, or use `--no-ddp`. For distributed training in full
        precision use `--ddp --opt-level O0`.
        """,
    declining.SHARED_MODULE: """
        Two scripts need a module rewritten differently.

        ## What is refused
        One of two scripts that share a module: where both need the same lines and not in the same way, or where one
        needs a change in a function that the other runs too and must not have. The one of which more is migrated is
        kept.

        ## Why
        The module is one file. What is right for the one script would be a half migration of the other.

        ## What to do by hand
        Migrate the declined script by itself with `--entry` to see what it would need, and give the two scripts
        functions of their own for it.
        """,
    declining.APEX: """
        Some use of Apex is not understood.

        ## What is refused
        The rewriting of a script for Apex, with `--apex idiom`; with `--apex auto` its imports are changed instead.
        Where the drop-in has not got what the script uses either, the script.

        ## Why
        Apex patches torch and the optimizer while the script runs. A use that is not understood, such as a scaled loss
        that is kept, `amp._amp_state` or a model that is wrapped before `amp.initialize`, may rest on any of that.

        ## What to do by hand
        Replace the place that the message names by PyTorch's own, then migrate again; or stay with `--apex compat`,
        which changes the imports only.
        """,
    declining.ASKED_APEX: """
        A comment or an option leaves out some use of Apex.

        ## What is refused
        The rewriting of a script for Apex, where a comment `# amp: skip`, `--ignore` or `--select` leaves out one of
        the rewrites that take Apex out.

        ## Why
        The script would import Apex for what is left and the runtime for the rest, with two scalers.

        ## What to do by hand
        Ask for the rewrite that the message names as well, or leave Apex altogether with `--ignore AMP4` and replace it
        by hand.
        """,
    declining.OLD_PLACE: """
        What an old name means at a place is not certain.

        ## What is refused
        That place alone, with `--modernize`; everything else is rewritten. For example `.data[0]` of something that may
        have more than one element, a softmax without `dim` on a tensor of unknown rank, a scheduler that steps at the
        head of an epoch.

        ## Why
        The old PyTorch took what it found at run time. Where the code does not show what that was, either rewriting may
        change the results.

        ## What to do by hand
        The message says which of the possible meanings is which, and what to write for each.
        """,
}


def all_reasons() -> list[Rule]:
    """Every reason for which something is left alone, by code, with its page."""
    return sorted((replace(rule, page=cleandoc(page)) for rule, page in _PAGES.items()), key=lambda rule: rule.code)
