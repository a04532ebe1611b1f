"""Executor processes and their connections."""
