"""The program model: what a training program is made of, found once and used by rewrites and checks.

Built on :mod:`ast` and keyed by nodes of it. Layers, each importing only those above it:

``source``   text and bytes of one file
``modules``  files of one project, and what an import leads to
``scopes``   which scope a name belongs to
``values``   the abstract values that names can hold
``cells``    variables, attributes and elements, and who reads them
``expressions``, ``libraries``, ``calls``  what an expression can hold, and what calls give
``flow``     which values reach which name, attribute and call: a fixed point over the program
``roles``    model, optimizer, scheduler, loader, ...: what a value is for
``blocks``   statements, suites and their order
``steps``    training steps: backward, optimizer steps, gradient accesses, and what belongs together
``regions``  the statements that compute a loss
``data``     where the batches of a training loop come from
"""
