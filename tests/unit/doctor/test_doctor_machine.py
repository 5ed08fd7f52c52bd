"""Reading a machine: files of the kernel as other machines have them, directories and limits as they are here."""

from __future__ import annotations

import resource
import socket
from pathlib import Path

import pytest

from tierd.adapters.instance import StateDirectory, last_owner
from tierd.adapters.shm import SharedDirectory, WantedFile
from tierd.doctor.cuda import look_at_cuda
from tierd.doctor.machine import look_at_machine, look_at_shm, look_at_state, mount_of
from tierd.settings import Settings

GIB = 1 << 30
FILES = {
    "proc/self/status": "Name:\tpython3\nCapEff:\t0000000000000000\nMems_allowed_list:\t0-1\n",
    "proc/meminfo": "MemTotal: 100 kB\nMemAvailable: 2048 kB\n",
    "proc/1/comm": "tierd\n",
    "proc/self/numa_maps": "55d0 interleave:0-1 file=/usr/bin/python3 mapped=1\n55d1 default heap\n",
    "sys/devices/system/node/has_memory": "0-3\n",
    "proc/self/cgroup": "0::/pod/tierd\n",
    "proc/self/mountinfo": (
        "22 1 0:20 / / rw shared:1 - ext4 /dev/vda1 rw,relatime\n"
        "30 22 0:24 / /dev/shm rw,nosuid shared:4 - tmpfs tmpfs rw,size=65536k\n"
        "31 30 0:25 / /dev/shm/big\\040one rw - tmpfs tmpfs rw,huge=within_size,size=1g\n"
    ),
}


def lay_out(root: Path, **changed: str) -> Path:
    """A machine's files under `root`; keys of `changed` have __ for / (double for one)."""
    for name, text in (FILES | {key.replace("__", "/"): value for key, value in changed.items()}).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def settings(tmp_path: Path) -> Settings:
    shm_dir = tmp_path / "shm"
    shm_dir.mkdir(exist_ok=True)
    return Settings(state_dir=tmp_path / "state", shm_dir=shm_dir, spill="none")


def test_a_machine(tmp_path: Path) -> None:
    """Memory, first process, NUMA nodes that are allowed and the policy are those of the kernel's files."""
    facts = look_at_machine(lay_out(tmp_path))
    assert facts.available_bytes == 2 << 20
    assert facts.first_process == "tierd"
    assert (facts.numa_nodes, facts.numa_policy) == (2, "interleave:0-1")
    assert facts.cgroup_limit_bytes is None


def test_a_kernel_that_shows_nothing(tmp_path: Path) -> None:
    """Where none of the files exists nothing fails, and nothing is claimed."""
    facts = look_at_machine(tmp_path)
    assert facts.cgroup_limit_bytes is None and facts.numa_nodes == 0 and not facts.numa_policy


def test_the_real_machine() -> None:
    """This machine has memory, at least one NUMA node or none told, and a first process."""
    facts = look_at_machine()
    assert facts.available_bytes > 1 << 20 and facts.first_process
    assert facts.descriptors == resource.getrlimit(resource.RLIMIT_NOFILE)[1]


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/pod/tierd", {"sys/fs/cgroup/pod/tierd/memory.max": "max"}, None),
        ("0::/pod/tierd", {"sys/fs/cgroup/pod/tierd/memory.max": "max",
                           "sys/fs/cgroup/pod/memory.max": str(GIB)}, GIB),
        ("0::/pod/tierd", {"sys/fs/cgroup/pod/tierd/memory.max": str(GIB),
                           "sys/fs/cgroup/pod/memory.max": str(4 * GIB)}, GIB),
        ("0::/", {"sys/fs/cgroup/memory.max": str(2 * GIB)}, 2 * GIB),
        ("0::/../other", {"sys/fs/cgroup/memory.max": str(3 * GIB)}, 3 * GIB),
        ("4:memory:/docker/x\n0::/", {"sys/fs/cgroup/memory/memory.limit_in_bytes": str(GIB)}, GIB),
        ("4:memory:/", {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}, None),
        ("4:cpu:/", {"sys/fs/cgroup/memory/memory.limit_in_bytes": str(GIB)}, None),
    ],
)
def test_control_groups(tmp_path: Path, groups: str, files: dict[str, str], limit: int | None) -> None:
    """The least limit of the group and those above it counts, in both versions, also where the path is not seen."""
    lay_out(tmp_path, proc__self__cgroup=groups + "\n")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert look_at_machine(tmp_path).cgroup_limit_bytes == limit


def test_locking_without_limit(tmp_path: Path) -> None:
    """Who has CAP_IPC_LOCK is not bound by the limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    bound = look_at_machine(lay_out(tmp_path)).memlock_bytes
    assert bound == (None if soft == resource.RLIM_INFINITY else soft)
    free = lay_out(tmp_path, proc__self__status="CapEff:\t0000000000004000\n")
    assert look_at_machine(free).memlock_bytes is None


@pytest.mark.parametrize(
    ("folder", "file_system", "huge"),
    [("/dev/shm", "tmpfs", ""), ("/dev/shm/big one", "tmpfs", "within_size"), ("/var", "ext4", "")],
)
def test_the_mount_that_counts(tmp_path: Path, folder: str, file_system: str, huge: str) -> None:
    """The file system is that of the deepest mount above the directory, with its option for huge pages."""
    assert mount_of(Path(folder), lay_out(tmp_path)) == (file_system, huge)


def test_files_of_instances(tmp_path: Path) -> None:
    """Files of the state directory's instance count as held, those of others apart."""
    own = settings(tmp_path)
    state = StateDirectory.claim(own.state_dir)
    assert last_owner(own.state_dir)[0] == state.instance
    for instance, size in ((state.instance, 1 << 20), (b"x" * 16, 2 << 20)):
        directory = SharedDirectory(own.shm_dir, instance)
        for file in directory.replace([WantedFile("seg-1", size, "host_bytes")]).values():
            file.close()
    state.release()
    facts = look_at_shm(own)
    assert (facts.held_bytes, facts.others_bytes) == (1 << 20, 2 << 20)


def test_shm_dir_that_is_none(tmp_path: Path) -> None:
    """A shm_dir that is not there, or a file, is a problem and not an exception."""
    own = settings(tmp_path)
    own.shm_dir.rmdir()
    assert look_at_shm(own).problem == "does not exist"
    own.shm_dir.write_text("")
    assert look_at_shm(own).problem == "not a directory"


def test_state_directory(tmp_path: Path) -> None:
    """A directory to be made, one that is there, sockets that are open to others, a file in the way."""
    own = settings(tmp_path)
    assert look_at_state(own).mode is None and not look_at_state(own).problem
    own.state_dir.mkdir(mode=0o750)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(own.attach_path))
        own.attach_path.chmod(0o666)
        found = look_at_state(own)
        assert (found.mode, found.running_pid) == (0o750, None)
        assert found.open_sockets == (str(own.attach_path),)
        listener.listen()
        assert look_at_state(own).running_pid == 0
    (tmp_path / "file").write_text("")
    inside = own.model_copy(update={"state_dir": tmp_path / "file" / "state"})
    assert "is not a directory" in look_at_state(inside).problem


def test_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's version is the loaded module's; the allocator's setting is read from the environment."""
    pytest.importorskip("torch")
    version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 2025\nGCC version: 13\n"
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    facts = look_at_cuda(lay_out(tmp_path, proc__driver__nvidia__version=version))
    assert facts.driver == "580.65.06" and facts.torch and facts.expandable_segments
    assert look_at_cuda(tmp_path / "nothing").driver == ""
