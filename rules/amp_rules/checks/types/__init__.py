"""Arithmetic and types."""
