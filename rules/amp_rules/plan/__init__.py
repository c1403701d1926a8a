"""Decisions: what is migrated whole, what is left alone and why.

``migration``        from an entry script to a report; ``notebooks`` for theirs
``units``            precision and distribution of a program without Apex, and the new texts
``options``          what was asked for; ``wanted`` and ``selection`` which rewrites that means
``skip_comments``    what stays as it is
``declining``        the reasons for declining, collected; ``refusal_pages`` what is to be done about them
``notes``            what a reader has to know besides; ``note_pages`` what may be done about it
``precision``        the shared facts of a training step; ``unscale_places`` where gradients are looked at
``missing_kernels``  what raises in half precision; ``batch_losses`` losses that see a rank's batch
``distribution``     what several rewrites for several processes share
``gradient_averaging``, ``downloads``, ``loaders_to_prepare``, ``sample_tables``, ``sample_queues``  what it works out
``training_flags``   which loops train in some rounds; ``loaders_by_flag`` what they iterate then
``left_out``         parameters that a step may leave out, ``outputs_in_loss`` outputs
``changing``         what may differ from step to step
``own_processes``, ``rank_decisions``, ``loose_parameters``  reasons against several processes
``questions``        what is asked on the console; ``reached_by_all`` where processes can tell each other something
``model_homes``      the variable through which a model is prepared, and where; ``written_buffers`` of other modules,
                     ``loaded_networks`` of which nothing is known
``main_path``        where the runtime starts; ``worker_functions`` what trains in its own processes
``next_steps``       which optimizers step next, ``step_conditions`` under which conditions
``draft_check``      a last look at what the edits made, as a program
``report``           the result; ``drafts`` texts on their way; ``vocabularies`` the words that were chosen
``context``          what a rewrite is given and gives back; ``rule`` how it declares itself
``apex``, ``old_torch``  older interfaces, which are taken out before anything else is decided

What a single rewrite decides stands in its own file, below :mod:`amp_rules.rewrites`.
"""
