"""Files with secrets: who else on this machine may read or change them."""

from __future__ import annotations

import os
import stat

__all__ = ["too_open"]

_OTHERS = stat.S_IRWXO
_GROUP_WRITES = stat.S_IWGRP


def too_open(status: os.stat_result) -> str | None:
    """What is wrong with the permissions of a file, and the remedy; None if they are tight enough.

    The group may read: that is how secrets are mounted into containers.
    """
    if not status.st_mode & (_OTHERS | _GROUP_WRITES):
        return None
    return f"has the permissions {stat.S_IMODE(status.st_mode):04o}, so that others could read or change it; chmod 600"
