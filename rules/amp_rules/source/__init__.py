"""Source: files, notebooks, scopes, the resolver of names, facts of functions and classes, the project around a file.

Both commands stand on this package: what a file says is read here once, and nothing here judges it.
"""
