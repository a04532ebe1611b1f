"""Calls over executors: the pure machine that decides what runs where, retries and what a task's calls amount to."""
