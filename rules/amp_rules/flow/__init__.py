"""Points-to analysis: what a name may hold."""
