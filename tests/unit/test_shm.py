"""Shared memory: files, the state directory's lock, and what a restart keeps, with real processes."""

from __future__ import annotations

import dataclasses
import mmap
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tierd.adapters.instance import StateDirBusy, StateDirectory
from tierd.adapters.memory import MemoryPlan, SharedMemory, Start, open_memory
from tierd.adapters.shm import NoRoom, Populator, SharedDirectory, WantedFile
from tierd.core.errors import InvalidInput

INSTANCE, OTHER = bytes(range(16)), bytes(range(16, 32))
PLAN = MemoryPlan(
    catalog_rows=64, catalog_buckets=128, ghost_rows=256, sessions=8, holds=64,
    host_segments=((1, 1 << 20), (2, 65536)), twin_segments=((0x4000, 65536),),
)


@pytest.fixture
def directory(tmp_path: Path) -> SharedDirectory:
    return SharedDirectory(tmp_path, INSTANCE)


@pytest.fixture
def memory(directory: SharedDirectory) -> Iterator[SharedMemory]:
    opened = open_memory(directory, PLAN, INSTANCE, boot=b"a" * 16)
    opened.in_use = True
    yield opened
    opened.close()


def again(directory: SharedDirectory, plan: MemoryPlan = PLAN) -> SharedMemory:
    return open_memory(directory, plan, INSTANCE, boot=b"b" * 16)


def run_python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


# --- files --------------------------------------------------------------------------------------------


def test_file_is_private_allocated_and_zero(directory: SharedDirectory) -> None:
    """A new file has mode 0600, all of its pages, close-on-exec descriptors and no bytes of anyone."""
    file = directory.replace([WantedFile("seg-1", 1 << 20, "host_bytes")])["seg-1"]
    stat = file.path.stat()
    assert stat.st_mode & 0o777 == 0o600
    assert stat.st_blocks * 512 >= 1 << 20
    assert not file.array().any()
    for writable in (False, True):
        descriptor = file.descriptor(writable=writable)
        assert not os.get_inheritable(descriptor)
        os.close(descriptor)
    assert file.path.name == f"tierd-{INSTANCE.hex()}-seg-1"


def test_read_only_descriptor_cannot_be_mapped_writable(directory: SharedDirectory) -> None:
    """A reader that got a read-only descriptor cannot write, not even by a shared mapping."""
    file = directory.replace([WantedFile("seg-1", 4096, "host_bytes")])["seg-1"]
    descriptor = file.descriptor(writable=False)
    try:
        with pytest.raises(PermissionError):
            mmap.mmap(descriptor, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(descriptor, b"x")
    finally:
        os.close(descriptor)


def test_no_room(directory: SharedDirectory, tmp_path: Path) -> None:
    """Too much is refused at once in words that name the setting, both sizes and the path; nothing is left."""
    began = time.monotonic()
    with pytest.raises(NoRoom) as caught:
        directory.replace([WantedFile("seg-1", 4096, "catalog_rows"), WantedFile("seg-2", 1 << 55, "host_bytes")])
    assert time.monotonic() - began < 5
    text = str(caught.value)
    assert "host_bytes" in text and f"{(1 << 55) + 4096:,}" in text
    assert "available" in text and str(tmp_path) in text
    assert list(tmp_path.iterdir()) == []


def test_no_directory(tmp_path: Path) -> None:
    """A shm_dir that does not exist is named with its setting."""
    with pytest.raises(NoRoom, match="shm_dir"):
        SharedDirectory(tmp_path / "none", INSTANCE).replace([WantedFile("seg-1", 4096, "host_bytes")])


def test_failure_half_way_leaves_nothing(directory: SharedDirectory, tmp_path: Path) -> None:
    """When one of several files cannot be made, those made before it are removed."""
    directory.path_of("seg-2").mkdir()
    with pytest.raises(OSError):
        directory.replace([WantedFile("seg-1", 4096, "host_bytes"), WantedFile("seg-2", 4096, "host_bytes")])
    assert not directory.path_of("seg-1").exists()


def test_other_instances_are_not_touched(directory: SharedDirectory, tmp_path: Path) -> None:
    """Files of another instance in the same directory are neither seen nor removed."""
    other = SharedDirectory(tmp_path, OTHER)
    other.replace([WantedFile("seg-1", 4096, "host_bytes"), WantedFile("old", 4096, "host_bytes")])
    open_memory(directory, PLAN, INSTANCE, b"a" * 16).close()
    assert other.names() == ["old", "seg-1"]


def test_populate(directory: SharedDirectory) -> None:
    """Populating touches every page, changes no byte and says how much it did."""
    file = directory.replace([WantedFile("seg-1", 40 << 20, "host_bytes")])["seg-1"]
    array = file.array()
    array[::4096] = 7
    reports: list[tuple[str, int]] = []
    populator = Populator([array], lambda event, size: reports.append((event, size)))
    populator.start()
    assert populator.join(30)
    assert reports == [("populated", 40 << 20)]
    assert (array[::4096] == 7).all()


def test_populate_stops(directory: SharedDirectory) -> None:
    """A stop ends the populating thread within its step."""
    array = directory.replace([WantedFile("seg-1", 64 << 20, "host_bytes")])["seg-1"].array()
    reports: list[tuple[str, int]] = []
    populator = Populator([array] * 1000, lambda event, size: reports.append((event, size)))
    populator.start()
    populator.stop()
    assert populator.join(0)
    assert reports[0][0] == "populate_stopped"


# --- the state directory ------------------------------------------------------------------------------


def test_instance_id_stays(tmp_path: Path) -> None:
    """The id is the same for every daemon on a state directory, and differs between directories."""
    first = StateDirectory.claim(tmp_path / "a")
    first.release()
    first.release()
    second = StateDirectory.claim(tmp_path / "a")
    assert second.instance == first.instance and len(first.instance) == 16
    assert StateDirectory.claim(tmp_path / "b").instance != first.instance


def test_torn_instance_file(tmp_path: Path) -> None:
    """A file torn by a crash gives a new id instead of an error."""
    (tmp_path / "instance").write_text("0123")
    assert len(StateDirectory.claim(tmp_path).instance) == 16


def test_counts_are_kept(tmp_path: Path) -> None:
    """A count is there for the next daemon; one that was never kept, or is torn, is 0."""
    first = StateDirectory.claim(tmp_path)
    assert first.count("epoch") == 0
    first.keep_count("epoch", 7)
    first.release()
    second = StateDirectory.claim(tmp_path)
    assert second.count("epoch") == 7
    for torn in ("", "seven", "-3"):
        (tmp_path / "epoch").write_text(torn)
        assert second.count("epoch") == 0


def test_second_daemon_is_refused(tmp_path: Path) -> None:
    """A state directory belongs to one process; the refusal names the directory and the owner's pid."""
    owner = StateDirectory.claim(tmp_path)
    done = run_python(
        """
        import sys
        from pathlib import Path
        from tierd.adapters.instance import StateDirectory
        StateDirectory.claim(Path(sys.argv[1]))
        """,
        tmp_path,
    )
    assert "StateDirBusy" in done.stderr and f"pid {os.getpid()}" in done.stderr and str(tmp_path) in done.stderr
    owner.release()


def test_lock_dies_with_its_process(tmp_path: Path) -> None:
    """A daemon killed with -9 leaves a directory that the next one can claim."""
    done = run_python(
        """
        import os, signal, sys
        from pathlib import Path
        from tierd.adapters.instance import StateDirectory
        kept = StateDirectory.claim(Path(sys.argv[1]))
        print(kept.instance.hex(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        tmp_path,
    )
    assert done.returncode == -signal.SIGKILL
    assert StateDirectory.claim(tmp_path).instance.hex() == done.stdout.strip()


def test_same_process_is_refused_too(tmp_path: Path) -> None:
    """Two daemons in one process do not share a state directory either."""
    owner = StateDirectory.claim(tmp_path)
    with pytest.raises(StateDirBusy):
        StateDirectory.claim(tmp_path)
    owner.release()


@pytest.mark.parametrize("impossible", ["file", "file/below", "instance"])
def test_a_state_directory_that_cannot_be_is_named(tmp_path: Path, impossible: str) -> None:
    """A path that is a file, lies below one, or holds a directory where the instance id goes, is an error
    that names setting and path."""
    (tmp_path / "file").touch()
    (tmp_path / "instance" / "instance").mkdir(parents=True)
    with pytest.raises(InvalidInput, match=f"state_dir: {tmp_path / impossible} cannot be"):
        StateDirectory.claim(tmp_path / impossible)


# --- over a restart -----------------------------------------------------------------------------------


def test_first_start(memory: SharedMemory, directory: SharedDirectory) -> None:
    """A first start makes every file of the plan and says that it is one."""
    assert memory.start is Start.NEW and memory.reason == ""
    assert directory.names() == ["catalog", "ghosts", "learnt", "seg-1", "seg-16384", "seg-2", "sessions"]
    assert memory.tables["catalog"].boot == b"a" * 16
    assert memory.tables["ghosts"]["identity"].shape == (256, 32)


def test_warm_restart_after_kill(tmp_path: Path, directory: SharedDirectory) -> None:
    """What a killed daemon had in tables and segments is there for the next one, but for copies in hbm."""
    done = run_python(
        """
        import os, signal, sys
        sys.path.insert(0, sys.argv[1])
        from pathlib import Path
        from test_shm import INSTANCE, PLAN
        from tierd.adapters.memory import open_memory
        from tierd.adapters.shm import SharedDirectory
        memory = open_memory(SharedDirectory(Path(sys.argv[2]), INSTANCE), PLAN, INSTANCE, b"a" * 16)
        memory.tables["catalog"]["identity"][3] = 9
        memory.tables["catalog"]["state"][:, 3] = 2
        memory.tables["ghosts"]["touches"][5] = 10
        memory.tables["sessions"]["session"][1] = 11
        memory.segments[2].array()[-1] = 12
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        Path(__file__).parent, tmp_path,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    memory = again(directory)
    assert memory.start is Start.WARM
    assert (memory.tables["catalog"]["identity"][3] == 9).all()
    assert memory.tables["catalog"]["state"][:, 3].tolist() == [0, 2, 2]
    assert memory.tables["ghosts"]["touches"][5] == 10
    assert memory.tables["sessions"]["session"][1] == 11
    assert memory.segments[2].array()[-1] == 12
    assert memory.tables["catalog"].boot == b"b" * 16


def test_a_reader_of_the_twin_keeps_what_it_sees(memory: SharedMemory, directory: SharedDirectory) -> None:
    """A restart neither pulls the twin's memory from under a reader nor gives new copies a file of which a
    reader with the catalog of the earlier daemon would not know."""
    view = memory.segments[0x4000].array()
    view[:] = 5
    fresh = again(directory)
    fresh.segments[0x4000].array()[0] = 6
    assert (view[1:] == 5).all() and view[0] == 6


@pytest.mark.parametrize(
    "change",
    [
        {"host_segments": ((1, 1 << 20), (2, 131072))},
        {"host_segments": ((1, 1 << 20),)},
        {"host_segments": ((1, 1 << 20), (2, 65536), (3, 65536))},
        {"twin_segments": ((0x4000, 131072),)},
        {"catalog_rows": 65},
        {"holds": 4096},
    ],
)
def test_changed_capacity_starts_empty(
    memory: SharedMemory, directory: SharedDirectory, change: dict[str, object]
) -> None:
    """With other sizes nothing of the old catalog or bytes is used, the reason is said, no old file stays."""
    memory.tables["catalog"]["state"][1, 0] = 2
    memory.segments[1].array()[0] = 1
    plan = dataclasses.replace(PLAN, **change)  # type: ignore[arg-type]
    fresh = again(directory, plan)
    assert fresh.start is Start.EMPTY and fresh.reason
    assert not fresh.tables["catalog"]["state"].any() and not fresh.segments[1].array().any()
    assert set(directory.names()) == plan.files().keys()


def test_unknown_version_starts_empty(memory: SharedMemory, directory: SharedDirectory) -> None:
    """A catalog of a format version that this code does not know is left alone as data and replaced."""
    memory.files["catalog"].array()[8] = 99
    memory.segments[1].array()[0] = 1
    fresh = again(directory)
    assert fresh.start is Start.EMPTY and "version 99" in fresh.reason
    assert not fresh.segments[1].array().any()


def test_foreign_catalog_starts_empty(memory: SharedMemory, directory: SharedDirectory) -> None:
    """A catalog whose header names another instance is not trusted."""
    memory.files["catalog"].array()[16:32] = 1
    fresh = again(directory)
    assert fresh.start is Start.EMPTY and "instance" in fresh.reason


def test_changed_ghosts_lose_only_ghosts(memory: SharedMemory, directory: SharedDirectory) -> None:
    """Another ghost capacity drops the ghosts and keeps the blocks."""
    memory.tables["catalog"]["state"][1, 0] = 2
    fresh = again(directory, dataclasses.replace(PLAN, ghost_rows=512))
    assert fresh.start is Start.WARM and "ghosts" in fresh.reason
    assert fresh.tables["catalog"]["state"][1, 0] == 2


def test_killed_while_making_files(memory: SharedMemory, directory: SharedDirectory) -> None:
    """A start that was killed before the catalog was complete counts as none: what is left is replaced."""
    memory.segments[1].array()[0] = 1
    directory.remove(["catalog"])
    fresh = again(directory)
    assert fresh.start is Start.NEW
    assert not fresh.segments[1].array().any()


def test_refused_growth_keeps_the_old_memory(memory: SharedMemory, directory: SharedDirectory) -> None:
    """A restart with a size that cannot be had fails and leaves the blocks of the earlier daemon in place."""
    memory.segments[1].array()[0] = 77
    with pytest.raises(NoRoom):
        again(directory, dataclasses.replace(PLAN, host_segments=((1, 1 << 20), (2, 65536), (3, 1 << 54))))
    kept = again(directory)
    assert kept.start is Start.WARM and kept.segments[1].array()[0] == 77


def test_start_that_came_to_nothing(directory: SharedDirectory, memory: SharedMemory) -> None:
    """A start that fails after it made files removes them, and leaves those of an earlier daemon."""
    again(directory, dataclasses.replace(PLAN, ghost_rows=512)).close()
    assert again(directory).start is Start.WARM
    other = SharedDirectory(directory.path, OTHER)
    open_memory(other, PLAN, OTHER, b"a" * 16).close()
    assert other.names() == []


def test_twin_off_removes_its_file(memory: SharedMemory, directory: SharedDirectory) -> None:
    """Turning hbm off gives its memory back and keeps the rest."""
    fresh = again(directory, dataclasses.replace(PLAN, twin_segments=()))
    assert fresh.start is Start.WARM
    assert "seg-16384" not in directory.names()


def test_tables_are_the_files(memory: SharedMemory) -> None:
    """What is written through a table's column is in its file, where another process sees it."""
    memory.tables["sessions"]["token"][0] = np.arange(16)
    assert bytes(range(16)) in memory.files["sessions"].path.read_bytes()


def test_a_directory_of_others_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state directory that another user made, or that everybody can write to, stops the start
    and gets no file."""
    theirs, open_to_all = tmp_path / "theirs", tmp_path / "open"
    theirs.mkdir()
    open_to_all.mkdir()
    open_to_all.chmod(0o1777)
    with pytest.raises(InvalidInput, match="can be written by every user"):
        StateDirectory.claim(open_to_all)
    monkeypatch.setattr(os, "geteuid", lambda: theirs.stat().st_uid + 12_345)
    os.chown(theirs, os.getuid() or 54_321, -1)
    with pytest.raises(InvalidInput, match="belongs to user"):
        StateDirectory.claim(theirs)
    assert not [*theirs.iterdir(), *open_to_all.iterdir()]
