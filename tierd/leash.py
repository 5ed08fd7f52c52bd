"""Processes that die when their parent does, also when it is killed with -9.

`python -m tierd.leash PARENT PROGRAM ARGUMENTS` becomes another program on such a leash: the request to the kernel
survives exec.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> bool:
    """SIGTERM comes when the process `parent`, which made this one, dies. False: it is dead already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    return os.getppid() == parent


def main(parent: int, command: list[str]) -> None:
    if die_with(parent):
        os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
