"""The command line `blockx`.

Data goes to stdout, words for people to stderr. Exit codes: 0 succeeded, 1 the task failed, 2 bad usage or refused,
3 no worker reachable.
"""

from blockx_worker.cli.main import main

__all__ = ["main"]
