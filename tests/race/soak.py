"""A long race (test_race.py): at least so many reads are compared while evictions go on, and a fifth as many blocks
are held. Status 1 for a wrong byte.

usage: soak.py [READS]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from race_run import Race, counts_of

READS = 10_000_000
READERS = 2
HELD_OF_READ = 5
READS_A_SECOND_MIN = 200
"""Of a reader on a machine that does much else, and stops it now and then."""


def main() -> int:
    reads = int(sys.argv[1]) if len(sys.argv) > 1 else READS
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tierd-soak-", dir="/dev/shm") as directory:
        race = Race(Path(directory))
        try:
            each = -(-reads // READERS)
            processes = race.start_readers(READERS, each) + race.start_holders(each // HELD_OF_READ)
            counts = counts_of(processes, each / READS_A_SECOND_MIN)
            written = race.stop_writer()
        finally:
            race.kill_writer()
    print(f"{dict(counts)}, {written} blocks written, {time.monotonic() - began:.0f} s")
    if counts["wrong"] or counts["late"] or counts["ghosts"]:
        print("WRONG BYTES: a reader was given what it did not ask for")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
