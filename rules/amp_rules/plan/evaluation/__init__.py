"""Evaluations that several processes share: which loops can be, and what of them is put together.

``loops`` finds them and asks whether every process comes by, ``modes`` whether the models are in evaluation mode;
``body`` reads what a round leaves behind, with ``rounds`` and ``assignments`` for variables, ``calls`` and ``making``
for functions, and ``meters`` for objects that average; ``beginnings`` finds what is added up from 0, and ``uses`` how
it is used behind the loop.
"""
