"""Slots and tasks: the pure machine that decides admission, phases and ends of tasks."""
