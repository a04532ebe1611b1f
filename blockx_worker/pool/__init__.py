"""Executor process slots: the pure machine that decides when a process is started again."""
