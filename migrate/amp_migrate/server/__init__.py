"""``amp-lint server``: findings, fixes and pages of rules for editors, in their language server protocol.

Only what an editor adds stands here; files are judged as by the command line. Layers, each importing those above it:

``positions``  places in the units that the editor counts in
``found``      what was found in a text, and what of it still holds in a later one
``projects``   the settings that hold for a file, and a warm linter for them
``worker``     one job after the other, in the main thread
``actions``    fixes and suppressions as edits of a text
``messages``   all this as the protocol has it
``documents``  the open files, and when they are judged
``editor``     the answers to what an editor asks
``serving``    the two threads
"""
