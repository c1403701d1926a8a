"""Decisions: what is migrated whole, what is left alone and why.

``refusal``       why a unit is declined
``homes``         the variable through which a model is prepared, and where
``precision``     autocast, scaling, steps, gradient accesses
``distribution``  loaders, saving, devices
``main_path``     where ``init`` goes
"""
