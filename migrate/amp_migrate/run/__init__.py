"""Finding files, sharing them out over processes, and remembering what came of them."""
