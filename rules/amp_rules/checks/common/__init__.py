"""What lint rules of one kind ask in common: built on the abstract machine and the facts of files, used by the rules.

Numbers: ``number_limits`` (what a type holds), ``zero_guards`` (epsilons), ``arithmetic`` (sums, squares, softmax by
hand). Types: ``mixed_types`` (what is certain of a type), ``position_counts`` (counting in half), ``result_uses`` (what
became of a value). The training step: ``step_events`` (what an operation means for it), ``step_text`` (the same by a
file's text), ``autocast_regions`` (around statements), ``autograd_functions``, ``apex_scripts``. Processes:
``rank_branches`` (who runs a statement), ``carriers`` (where an object goes), ``wrapping`` (of models),
``around_wrappers`` (passes that DistributedDataParallel knows nothing of).
"""
