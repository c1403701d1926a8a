"""What lint rules of one kind ask in common: built on the linter's engine, used by the rules, knowing neither's inside.

Numbers: ``limits`` (what a type holds), ``guards`` (epsilons), ``patterns`` (sums, squares, softmax by hand).
Types: ``mixing`` (what is certain of a type), ``positions`` (counting in half), ``uses`` (what became of a value).
Training: ``protocol`` (events of a step), ``steps``, ``regions`` (autocast around statements), ``autograd``, ``apex``.
Processes: ``processes`` (who runs a statement), ``carriers`` (where an object goes), ``wrapping`` (of models).
"""
