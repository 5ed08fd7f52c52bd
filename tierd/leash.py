"""Processes that die when their parent does, also when it is killed with -9.

`python -m tierd.leash PARENT SIGNAL PROGRAM ARGUMENTS` becomes another program on such a leash: the request to the
kernel survives exec. Not by preexec_fn: with it subprocess forks, and a fork beside gRPC ends badly now and then.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def die_with(parent: int, signum: int = signal.SIGTERM) -> bool:
    """`signum` comes when the process `parent`, which made this one, dies. False: it is dead already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0)
    return os.getppid() == parent


def leashed(command: Sequence[str], signum: int = signal.SIGTERM) -> list[str]:
    """The command that runs `command` on a leash of this process."""
    return [sys.executable, "-S", __file__, str(os.getpid()), str(int(signum)), *command]


def main(parent: int, signum: int, command: list[str]) -> None:
    if die_with(parent, signum):
        os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
