"""The lint rules, one a file; :func:`amp_rules.lint.all_checks` finds them by themselves."""
