"""Settings to daemon: the one place where its parts are made and put together.

Two steps. The ground is laid before the event loop and before gRPC runs: the lock on the state directory,
the embedded Valkey (forked while there are no other threads and little memory), shared memory. On it the
engine, its shell and the servers are composed as stages of the daemon.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import secrets
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

import structlog

from tierd.adapters.arena_host import HostArena
from tierd.adapters.attach import AttachServer, Calls, DeviceSegment, Offer
from tierd.adapters.device import Device
from tierd.adapters.hazards import HazardPages, full_barrier
from tierd.adapters.hbm_arena import HbmArena
from tierd.adapters.instance import StateDirectory
from tierd.adapters.lent import LentMemory
from tierd.adapters.memory import MemoryPlan, SharedMemory, Start, open_memory
from tierd.adapters.processes import ProcessWatch
from tierd.adapters.secret_files import check_certificate, read_secret, read_tokens
from tierd.adapters.shm import Populator, SharedDirectory
from tierd.adapters.steady_clock import SteadyClock
from tierd.adapters.survivors import Survivors
from tierd.adapters.trace_log import TraceLog
from tierd.app.daemon import Daemon, Stage
from tierd.app.finder import Finder
from tierd.app.footprints import FootprintSurvey
from tierd.app.lending import Pools
from tierd.app.mover import Mover
from tierd.app.namespaces import Namespaces
from tierd.app.readiness import Readiness
from tierd.app.recorder import Recorder
from tierd.app.restater import Restater
from tierd.app.service import About, Service
from tierd.app.shadow import Shadow, ShadowSettings
from tierd.app.spill_slot import SpillSlot
from tierd.app.spill_switch import SpillSwitch
from tierd.app.spill_watch import SpillWatch
from tierd.app.writer import Writer
from tierd.core.engine import Engine
from tierd.core.engine_settings import EngineSettings, TierSpec
from tierd.core.errors import InvalidInput
from tierd.core.hazards import Hazards
from tierd.core.messages import Tier
from tierd.core.policy.registry import parse
from tierd.core.tables import Tables
from tierd.plugins import offer_policies
from tierd.ports import ArenaStore, SpillStore
from tierd.rpc.access import Access, Tls
from tierd.rpc.server import RpcServer
from tierd.settings import Settings, SpillScope
from tierd.web.routes import application
from tierd.web.server import HttpServer, address_of, bind
from tierd_client.format import U8Array
from tierd_client.heap import keep_freed_memory

log = structlog.get_logger(__name__)

HEARTBEAT_MS = 5000
HTTP_DEFAULT = "127.0.0.1:9400"
CALLS_PER_SESSION = 2
CALLS_BESIDE = 256
EMBEDDED_OVERHEAD_BYTES = 64 << 20
"""What Valkey takes beside the values; with an eighth of them for its allocator it never refuses first."""

MEMORY_STOP_S = 2.0


@dataclass(frozen=True, slots=True)
class Ground:
    """What is there before the event loop runs."""

    settings: Settings
    state: StateDirectory
    boot: bytes
    memory: SharedMemory
    arenas: Mapping[Tier, ArenaStore]
    spill: SpillSlot
    access: Access
    tls: Tls | None
    lent: LentMemory | None = None
    on_device: HbmArena | None = None


def serve(settings: Settings) -> None:
    """Runs a daemon until it is told to stop. Raises what keeps it from starting, and leaves nothing then."""
    import uvloop

    offer_policies(_tell_failed_policy)
    parse(settings.policy)  # before anything is made: a typing error must not cost a warm restart
    os.umask(0o077)
    _raise_descriptor_limit()
    keep_freed_memory()
    with ExitStack() as held:
        ground = lay_ground(settings, held)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_live(ground))
    log.info("stopped", shared_memory="kept for a warm restart", files=ground.memory.directory.pattern)


def lay_ground(settings: Settings, held: ExitStack) -> Ground:
    """Secrets, lock, spill server, shared memory; `held` gives them back in the reverse order."""
    access, tls = _access(settings), _tls(settings)
    state = StateDirectory.claim(settings.state_dir)
    held.callback(state.release)
    spill = SpillSlot(_spill_store(settings, state, held))
    held.callback(spill.close)
    boot = secrets.token_bytes(16)
    directory = SharedDirectory(settings.shm_dir, state.instance)
    memory = open_memory(directory, memory_plan(settings), state.instance, boot)
    held.callback(memory.close)
    arenas = _arenas(settings, memory)
    for arena in arenas.values():
        held.callback(arena.close)
    lent = LentMemory(_gpu) if settings.max_lent_pools else None
    if lent is not None:
        held.callback(lent.close)
    _say_what_was_found(memory)
    hbm = arenas.get(Tier.HBM)
    on_device = hbm if isinstance(hbm, HbmArena) else None
    return Ground(settings, state, boot, memory, arenas, spill, access, tls, lent, on_device)


async def _live(ground: Ground) -> None:
    daemon = compose(ground)
    await daemon.run()


def compose(ground: Ground) -> Daemon:
    """The daemon's parts on a ground. To be called on the event loop's thread, while it runs."""
    settings, memory = ground.settings, ground.memory
    listener = _http_listener(settings)
    survivors = Survivors(memory.tables["sessions"], fresh=memory.start is not Start.WARM)
    tables, pages = Tables(**memory.tables), HazardPages(memory.directory, survivors.numbers)
    looked_at = Hazards(pages.pages(), full_barrier)
    engine = Engine(_engine_settings(ground), tables, survivors.numbers, looked_at)
    writer = Writer(engine, SteadyClock())
    namespaces = Namespaces(ground.state.path / "namespaces.json")
    namespaces.forget_retired(in_use=engine.namespaces())
    mover = Mover(
        ground.arenas, ground.spill, fingerprint_of=namespaces.fingerprint_of, threads=settings.mover_threads,
        op_timeout_s=settings.spill_timeout_ms / 1000, on_results=writer.finish, lent=ground.lent,
        fence_timeout_s=settings.lent_fence_timeout_ms / 1000, spill_threads=_spill_threads(settings),
    )
    writer.carry_out_with(mover.submit)
    health_changed = asyncio.Event()
    spill_watch = SpillWatch(
        ground.spill, writer, mover, lambda _: health_changed.set(), probe_up_s=settings.spill_probe_ms / 1000,
        expected=ground.spill.attached,
    )
    finder = Finder(
        writer, mover, namespaces, timeout_s=settings.spill_lookup_ms / 1000,
        ttl_s=settings.spill_miss_ttl_ms / 1000,
    )
    survey = FootprintSurvey(writer, mover, save=partial(_keep_footprints, ground.state))
    restater = Restater(writer, mover, every_s=settings.spill_statistics_s)
    make_store = partial(_attached_store, settings, ground.state)
    trace = _trace_recorder(settings, writer)
    shadow = _shadow(settings, engine.state.policy.spec, trace)
    service = Service(
        writer, mover, namespaces, _about(ground, listener), shadow=shadow, orphans=engine.orphans,
        spill_watch=spill_watch, finder=finder, pools=Pools(ground.lent, settings.max_lent_pools),
        spill_switch=SpillSwitch(ground.spill, writer, mover, spill_watch, finder, make_store),
    )
    stages = [
        _memory_stage(ground), Stage("mover", stop=mover.stop), Stage("spill-watch", run=spill_watch.run),
        Stage("finder", stop=finder.stop), Stage("restater", run=restater.run, stop=restater.stop),
        Stage("footprints", run=survey.run),
        Stage("sweep", run=service.sweep.run), Stage("shadow", run=shadow.run, stop=shadow.stop),
    ]
    if trace is not None:
        stages.append(Stage("recorder", run=trace.run, stop=trace.stop))
    server = _rpc_server(ground, service)
    stages.append(_attach_stage(ground, service, survivors, server.lane, pages))
    stages += _rpc_stages(server, service, health_changed)
    if listener is not None:
        stages += _http_stages(listener, service)
    return Daemon(stages, on_ready=lambda: _ready(ground), stop_timeout_s=settings.stop_timeout_s)


# --- the ground -----------------------------------------------------------------------------------------


def memory_plan(settings: Settings) -> MemoryPlan:
    """Sizes of all shared memory."""
    return MemoryPlan(
        catalog_rows=settings.rows, catalog_buckets=1 << max(4, (2 * settings.rows - 1).bit_length()),
        ghost_rows=settings.ghosts, sessions=settings.max_sessions, holds=settings.max_holds,
        host_segments=settings.host_segments,
        twin_segments=settings.hbm_segments if settings.hbm_device == "cpu" else (),
    )


def _spill_store(settings: Settings, state: StateDirectory, held: ExitStack) -> SpillStore | None:
    kind = settings.spill.get_secret_value()
    if kind == "none":
        return None
    if kind == "memory":
        from tierd.adapters.spill_memory import MemorySpillStore

        return MemorySpillStore(settings.spill_bytes_max)
    if kind == "embedded":
        return _redis_store(settings, state, _embedded(settings, state, held), shared=False)
    return _redis_store(settings, state, kind, shared=settings.spill_scope is SpillScope.SHARED)


def _redis_store(settings: Settings, state: StateDirectory, url: str, shared: bool) -> SpillStore:
    """InvalidInput for a URL that is none."""
    from tierd.adapters.spill_redis import RedisSpillStore

    return RedisSpillStore(
        url, instance=state.instance, marker=state.secret("marker"), prefix=settings.spill_prefix,
        pool_size=settings.spill_connections, connect_timeout_s=settings.spill_connect_timeout_ms / 1000,
        shared=shared, epoch=state.count("marker-epoch"), save_epoch=partial(_keep_epoch, state),
    )


def _attached_store(settings: Settings, state: StateDirectory, url: str, files: bool) -> SpillStore:
    """Of a URL that came by a call. InvalidInput where it names files and may not."""
    from tierd.adapters.redis_url import refuse_files

    if not files:
        refuse_files(url)
    return _redis_store(settings, state, url, shared=settings.spill_scope is SpillScope.SHARED)


def _spill_threads(settings: Settings) -> int:
    """A thread has the next blocks under way while one arrives. More of them than connections wait for these, more
    than processors for each other in the interpreter; two let loads pass stores."""
    return min(settings.mover_threads, settings.spill_connections, max(2, len(os.sched_getaffinity(0))))


def _keep_epoch(state: StateDirectory, epoch: int) -> None:
    """An epoch that is not kept costs the next start what it would have found in the spill store."""
    try:
        state.keep_count("marker-epoch", epoch)
    except OSError as error:
        log.warning("marker_epoch_not_kept", epoch=epoch, error=str(error))


def _keep_footprints(state: StateDirectory, bytes_by_size: Mapping[int, int]) -> None:
    """Footprints that are not kept cost the next start some time in which whole pages are assumed."""
    try:
        state.keep_numbers("footprints", bytes_by_size)
    except OSError as error:
        log.warning("footprints_not_kept", error=str(error))


def embedded_bytes(settings: Settings) -> int:
    """The most memory that the embedded server may take."""
    return settings.spill_bytes_max + settings.spill_bytes_max // 8 + EMBEDDED_OVERHEAD_BYTES


def _embedded(settings: Settings, state: StateDirectory, held: ExitStack) -> str:
    """Starts the child; returns its URL."""
    from tierd.adapters.spill_embedded import EmbeddedValkey

    valkey = EmbeddedValkey(state.path, embedded_bytes(settings))
    held.callback(valkey.stop)
    valkey.start()
    log.info("embedded_valkey", pid=valkey.pid, keeps="nothing over a restart")
    return valkey.url


def _arenas(settings: Settings, memory: SharedMemory) -> dict[Tier, ArenaStore]:
    def arrays(segments: Sequence[tuple[int, int]]) -> dict[int, U8Array]:
        return {number: memory.segments[number].array() for number, _ in segments}

    arenas: dict[Tier, ArenaStore] = {Tier.HOST: HostArena(arrays(settings.host_segments))}
    if settings.hbm_bytes and settings.hbm_device == "cpu":
        from tierd.adapters.hbm_cpu import HbmCpuTwin
        from tierd.adapters.torch_bytes import use_one_thread

        use_one_thread()
        arenas[Tier.HBM] = HbmCpuTwin(arrays(settings.hbm_segments))
    elif settings.hbm_bytes:
        from tierd.adapters.hbm_cuda import CudaDevice

        arenas[Tier.HBM] = HbmArena(CudaDevice(settings.hbm_device), dict(settings.hbm_segments))
    return arenas


def _gpu(uuid: str) -> Device:
    from tierd.adapters.hbm_cuda import device_of

    return device_of(uuid)


def _raise_descriptor_limit() -> None:
    """A connection, a session's process and a spill connection each take a descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# --- parts of the daemon --------------------------------------------------------------------------------


def _engine_settings(ground: Ground) -> EngineSettings:
    settings = ground.settings
    tiers = [TierSpec(Tier.HOST, segments=settings.host_segments)]
    hbm = ground.arenas.get(Tier.HBM)
    if hbm is not None or ground.lent is not None:
        readable = hbm is not None and hbm.mappable
        segments = settings.hbm_segments if hbm is not None else ()
        tiers.append(TierSpec(Tier.HBM, segments, readable=readable, lends=ground.lent is not None))
    tiers.append(TierSpec(
        Tier.SPILL, capacity_bytes=settings.spill_bytes_max, footprints=ground.state.numbers("footprints"),
    ))
    return EngineSettings(
        tiers=tuple(tiers), policy=settings.policy, clock=settings.clock.value,
        steps_per_second=settings.steps_per_second, max_moves=settings.max_moves, max_held=settings.max_held,
        max_sequences=settings.max_sequences, spill_grace_s=settings.spill_grace_s,
        stock_bytes=settings.stock_bytes, stock_share=settings.stock_share,
        pin_share=settings.pin_share, pin_ttl_s=settings.pin_ttl_s, pin_ttl_max_s=settings.pin_ttl_max_s,
        tool_call_s=settings.tool_call_s, tool_call_max_s=settings.tool_call_max_s,
        max_prefetches=settings.max_prefetches, max_prefetch_moves=settings.max_prefetch_moves,
        spill_attached=ground.spill.attached, spill_write=settings.spill_write.value,
        spill_bytes_per_s=settings.spill_bytes_per_s, spill_high=settings.spill_high_watermark,
        spill_low=settings.spill_low_watermark, spill_ahead=settings.spill_ahead_blocks,
        read_ahead_bytes=settings.spill_read_ahead_bytes,
    )


def _about(ground: Ground, listener: socket.socket | None) -> About:
    settings = ground.settings
    http_address = address_of(listener).removeprefix("http://") if listener else "off"
    return About(
        boot_id=ground.boot, instance_id=ground.state.instance,
        attach_path=str(settings.attach_path), heartbeat_ms=HEARTBEAT_MS, max_ids=settings.max_ids,
        max_held=settings.max_held, stock_bytes=settings.stock_bytes, version=version("tierd"),
        requested_bytes={
            Tier.HBM: settings.hbm_bytes, Tier.HOST: settings.host_bytes,
            Tier.SPILL: settings.spill_bytes_max,
        },
        config_json=json.dumps(settings.public() | {"http_address": http_address}),
    )


def _memory_stage(ground: Ground) -> Stage:
    """Populates in the background, so that readiness does not wait for it."""
    arrays = [file.array() for file in ground.memory.files.values()]
    host = [ground.memory.segments[number].array() for number, _ in ground.settings.host_segments]

    def report(event: str, size: int) -> None:
        on_device = ground.on_device if event == "populated" else None
        pinned = on_device.pin(host) if on_device is not None else 0
        log.info(event, bytes=size, pinned_bytes=pinned)

    populator = Populator(arrays, report)

    async def start() -> None:
        populator.start()

    async def stop(timeout_s: float) -> None:
        await asyncio.to_thread(populator.stop, min(timeout_s, MEMORY_STOP_S))

    return Stage("memory", start=start, stop=stop)


def _attach_stage(
    ground: Ground, service: Service, survivors: Survivors, calls: Calls, pages: HazardPages
) -> Stage:
    memory = ground.memory
    mappable = [tier for tier in (Tier.HOST, Tier.HBM) if tier in ground.arenas and ground.arenas[tier].mappable]
    by_tier = {Tier.HOST: ground.settings.host_segments, Tier.HBM: ground.settings.hbm_segments}
    segments = [(number, tier, memory.segments[number]) for tier in mappable for number, _ in by_tier[tier]]
    watch = ProcessWatch(service.process_ended)
    service.sessions.on_end += [watch.forget, pages.remove]
    offer = Offer(ground.boot, memory.files["catalog"], segments, devices=_device_segments(ground))
    server = AttachServer(ground.settings.attach_path, offer, service, watch, ground.lent, calls, pages)

    async def start() -> None:
        survivors.watch(watch, service.process_ended)
        server.listen()

    async def stop(_: float) -> None:
        server.close()
        watch.close()

    return Stage("attach", start=start, run=server.serve, stop=stop)


def _device_segments(ground: Ground) -> dict[int, DeviceSegment]:
    arena = ground.on_device
    if arena is None:
        return {}
    sizes = dict(ground.settings.hbm_segments)
    return {
        number: DeviceSegment(Tier.HBM, sizes[number], arena.device_name, handle)
        for number, handle in arena.handles().items()
    }


def _rpc_server(ground: Ground, service: Service) -> RpcServer:
    settings = ground.settings
    calls = CALLS_PER_SESSION * settings.max_sessions + CALLS_BESIDE
    return RpcServer(
        service, settings.addresses, concurrent_rpcs_max=calls, access=ground.access, tls=ground.tls
    )


def _rpc_stages(server: RpcServer, service: Service, health_changed: asyncio.Event) -> list[Stage]:
    async def tell_health() -> None:
        while True:
            await health_changed.wait()
            health_changed.clear()
            await server.set_health(Tier.SPILL, service.tier_state(Tier.SPILL).serving)

    async def start() -> None:
        await server.start()
        log.info("listening", addresses=list(server.addresses))

    return [Stage("rpc", start=start, stop=server.stop), Stage("health", run=tell_health)]


def _access(settings: Settings) -> Access:
    """Who may call over TCP. Says aloud what a setting leaves open."""
    unguarded = not settings.has_tokens and settings.tls_client_ca_file is None
    if settings.exposed and (unguarded or settings.tls_cert_file is None):
        log.warning(
            "exposed", addresses=list(settings.exposed), login="none" if unguarded else "needed",
            encryption="none" if settings.tls_cert_file is None else "TLS",
        )
    names = ("data_token_file", "admin_token_file")
    paths = {name: getattr(settings, name) for name in names}
    return Access(*(read_tokens(path, name) if path is not None else () for name, path in paths.items()))


def _tls(settings: Settings) -> Tls | None:
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    check_certificate(settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file)
    client_ca = settings.tls_client_ca_file
    return Tls(
        read_secret(settings.tls_cert_file, "tls_cert_file"), read_secret(settings.tls_key_file, "tls_key_file"),
        read_secret(client_ca, "tls_client_ca_file") if client_ca is not None else None,
    )


def _trace_recorder(settings: Settings, writer: Writer) -> Recorder | None:
    """A recorder that sees every command, if one is wanted. InvalidInput when its files cannot be made."""
    if not settings.record_bytes:
        return None
    directory = settings.record_dir or settings.state_dir / "trace"
    try:
        trace = TraceLog(directory, settings.record_bytes)
    except OSError as error:
        raise InvalidInput("record_dir", f"{directory} cannot be written to: {error.strerror}") from error
    recorder = Recorder(trace.write)
    writer.tell(recorder.note)
    return recorder


def _tell_failed_policy(name: str, why: str) -> None:
    log.error("policy_failed", policy=name, error=why, consequence="blocks go by their last access")


def _shadow(settings: Settings, policy: str, trace: Recorder | None) -> Shadow:
    limits = ShadowSettings(
        settings.shadow_sizes_bytes, settings.shadow_blocks_max, settings.shadow_namespaces_max,
        settings.shadow_cpu_percent,
    )
    return Shadow(limits, policy, trace)


def _http_listener(settings: Settings) -> socket.socket | None:
    if settings.http_address == "off":
        return None
    return bind(settings.http_address or HTTP_DEFAULT, else_any_port=not settings.http_address)


def _http_stages(listener: socket.socket, service: Service) -> list[Stage]:
    readiness = Readiness(service)
    server = HttpServer(application(service, readiness), listener)

    async def start() -> None:
        log.info("http", address=address_of(listener))

    return [Stage("readiness", run=readiness.run), Stage("http", start=start, run=server.run, stop=server.stop)]


# --- the log --------------------------------------------------------------------------------------------


def _say_what_was_found(memory: SharedMemory) -> None:
    if memory.start is Start.WARM:
        log.info("warm_restart", **({"note": memory.reason} if memory.reason else {}))
    elif memory.start is Start.EMPTY:
        log.warning("started_empty", reason=memory.reason, lost="the blocks of the earlier daemon")
    else:
        log.info("first_start")


def _ready(ground: Ground) -> None:
    settings = ground.settings
    ground.memory.in_use = True
    log.info(
        "READY", version=version("tierd"), instance=ground.state.instance.hex(), state_dir=str(settings.state_dir),
        host_bytes=settings.host_bytes, hbm_bytes=settings.hbm_bytes, hbm_device=settings.hbm_device,
        spill=settings.public()["spill"], policy=settings.policy, start=ground.memory.start.value,
    )
