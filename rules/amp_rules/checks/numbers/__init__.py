"""Constants and epsilons against the range of half types."""
