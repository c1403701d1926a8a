"""What differs between ranks: every value is replicated, or local to a rank, with the origins that make it so."""
