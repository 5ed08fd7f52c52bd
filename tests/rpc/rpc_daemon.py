"""A daemon's inside in this process: real engine, mover, service and gRPC server on a Unix socket.

Arenas lie in private memory and the spill tier in a dictionary, wrapped so that a test can make it fail.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np

from tierd.adapters.arena_host import HostArena
from tierd.adapters.device import Device
from tierd.adapters.hbm_arena import HbmArena
from tierd.adapters.redis_url import refuse_files
from tierd.adapters.spill_memory import MemorySpillStore
from tierd.app.carrier import checksum_of
from tierd.app.finder import Finder
from tierd.app.mover import Mover
from tierd.app.namespaces import Namespaces
from tierd.app.service import About, Service
from tierd.app.shadow import Shadow, ShadowSettings
from tierd.app.spill_slot import SpillSlot
from tierd.app.spill_switch import SpillSwitch
from tierd.app.spill_watch import SpillWatch
from tierd.app.writer import Writer
from tierd.core.engine import Engine, EngineSettings, Tables, TierSpec
from tierd.core.errors import InvalidInput
from tierd.core.messages import Tier
from tierd.ports import ArenaStore, SpillStore
from tierd.rpc.server import RpcServer
from tierd.testing.faulty import FaultySpillStore, Script, Scripted
from tierd_client.format import U8Array
from tierd_client.layout import Layout
from tierd_client.v1 import admin_pb2 as apb
from tierd_client.v1 import admin_pb2_grpc, blocks_pb2_grpc
from tierd_client.v1 import blocks_pb2 as pb

BLOCK = 4096
SEGMENT_OF = {Tier.HOST: 1, Tier.HBM: 0x4000}
SHADOW = ShadowSettings(sizes_bytes=(BLOCK, 1 << 20), blocks_max=256, namespaces_max=2, cpu_percent=100)
DEADLINE_S = 20.0
SESSION_S = 120.0
"""Longer than any wait of a test: a session that ends frees what a bug would have left behind."""

OPTIONS = (("grpc.max_receive_message_length", 16 << 20), ("grpc.max_send_message_length", 16 << 20))


@dataclass
class Daemon:
    """The parts, and stubs on a channel to it."""

    engine: Engine
    service: Service
    server: RpcServer
    watch: SpillWatch
    store: MemorySpillStore
    faulty: FaultySpillStore
    arenas: dict[Tier, ArenaStore]
    channel: grpc.aio.Channel
    blocks: blocks_pb2_grpc.BlocksStub
    admin: admin_pb2_grpc.AdminStub
    address: str
    others: dict[str, SpillStore]
    """Spill stores that can be attached, by what stands for their URL."""
    opened: list[OpenedSession] = field(default_factory=list)
    """Keeps the streams: one that is garbage is cancelled, and its session ends."""

    async def session(self, name: str = "test") -> OpenedSession:
        """Opens a session and keeps its stream."""
        request = pb.SessionRequest(client_name=name, protocol_version=1, pid=1)
        call = self.blocks.Session(request, timeout=SESSION_S)
        self.opened.append(OpenedSession(call, await call.read()))
        return self.opened[-1]

    async def namespace(self, layout: Layout | None = None, name: str = "") -> int:
        layout = layout or Layout.opaque(block_bytes=BLOCK)
        reply = await self.blocks.RegisterNamespace(register_request(layout, name), timeout=DEADLINE_S)
        return int(reply.namespace)

    def view(self, address: int) -> U8Array:
        """The bytes of a slot, as a client that maps the segment has them."""
        tier = Tier.HOST if address >> 48 == SEGMENT_OF[Tier.HOST] else Tier.HBM
        return self.arenas[tier].view(address, BLOCK)

    async def reserve(
        self, session: int, blocks: pb.BlockIds, tier: Tier = Tier.HOST, **fields: object
    ) -> pb.ReserveResponse:
        request = pb.ReserveRequest(session=session, blocks=blocks, tier=int(tier), **fields)
        return await self.blocks.Reserve(request, timeout=DEADLINE_S)

    async def acquire(self, session: int, blocks: pb.BlockIds, **fields: object) -> pb.AcquireResponse:
        request = pb.AcquireRequest(session=session, blocks=blocks, **fields)
        return await self.blocks.Acquire(request, timeout=DEADLINE_S)

    async def release(self, session: int, *leases: int) -> int:
        request = pb.ReleaseRequest(session=session, leases=leases)
        return int((await self.blocks.Release(request, timeout=DEADLINE_S)).released_blocks)

    async def evict(self, blocks: pb.BlockIds, to: Tier | None = Tier.SPILL, **fields: object) -> list[int]:
        request = pb.EvictRequest(blocks=blocks, to=int(to or 0), **{"timeout_ms": 5000, **fields})
        return list((await self.blocks.Evict(request, timeout=DEADLINE_S)).outcomes)

    async def readmit(self, blocks: pb.BlockIds, to: Tier = Tier.HOST, timeout_ms: int = 5000) -> list[int]:
        request = pb.ReadmitRequest(blocks=blocks, to=int(to), timeout_ms=timeout_ms)
        return list((await self.blocks.Readmit(request, timeout=DEADLINE_S)).outcomes)

    async def tiers_of(self, blocks: pb.BlockIds) -> list[int]:
        """Bit per tier with a READY copy that can be reached, for each id."""
        return list((await self.blocks.Lookup(pb.LookupRequest(blocks=blocks), timeout=DEADLINE_S)).tiers)

    async def check_balance(self) -> None:
        """free + used + reserved + quarantined = capacity, in each tier that is on."""
        reply = await self.admin.Occupancy(apb.OccupancyRequest(), timeout=DEADLINE_S)
        for tier in reply.tiers:
            parts = tier.free_bytes + tier.used_bytes + tier.reserved_bytes + tier.quarantined_bytes
            assert parts == tier.capacity_bytes, tier

    async def store_blocks(self, session: int, blocks: pb.BlockIds, tier: Tier = Tier.HOST) -> None:
        """Reserve, write and commit, as a client on this host does."""
        request = pb.ReserveRequest(session=session, blocks=blocks, tier=int(tier), timeout_ms=5000)
        reserved = await self.blocks.Reserve(request, timeout=DEADLINE_S)
        assert set(reserved.outcomes) == {pb.RESERVE_OUTCOME_GRANTED}, reserved.outcomes
        data = [payload(blocks.ids[32 * i : 32 * i + 32]) for i in range(len(reserved.outcomes))]
        for one, address in zip(data, reserved.addresses, strict=True):
            self.view(address)[:] = one
        commit = pb.CommitRequest(
            session=session, ids=blocks.ids, generations=reserved.generations,
            checksums=[checksum_of(one) for one in data], tier=int(tier),
        )
        committed = await self.blocks.Commit(commit, timeout=DEADLINE_S)
        assert set(committed.outcomes) == {pb.COMMIT_OUTCOME_COMMITTED}


@dataclass
class OpenedSession:
    call: grpc.aio.UnaryStreamCall
    info: pb.SessionInfo

    @property
    def number(self) -> int:
        return int(self.info.session)


def register_request(layout: Layout, name: str = "") -> pb.RegisterNamespaceRequest:
    return pb.RegisterNamespaceRequest(
        schema_version=1, fingerprint=layout.fingerprint, canonical=layout.canonical(), name=name
    )


def identity(seed: int) -> bytes:
    return np.random.default_rng(seed).bytes(32)


def ids_of(*seeds: int) -> bytes:
    return b"".join(map(identity, seeds))


def payload(of: bytes) -> U8Array:
    """The block's bytes, made from its identity."""
    return np.random.default_rng(list(of)).integers(0, 256, BLOCK, np.uint8)


def block_ids(*seeds: int, namespace: int = 1, **fields: object) -> pb.BlockIds:
    return pb.BlockIds(namespace=namespace, ids=ids_of(*seeds), **fields)


@asynccontextmanager
async def running(
    directory: Path, *, host_blocks: int = 64, hbm_blocks: int = 16, spill_bytes: int = 1 << 20,
    script: Script | None = None, heartbeat_ms: int = 1000, max_ids: int = 1000, max_held: int = 2000,
    rpcs_max: int = 100, op_timeout_s: float = 2.0, policy: str = "lru", sessions: int = 16, spill: bool = True,
    shared: bool = False, spill_bytes_per_s: float = 0.0, look_s: float = 5.0, ttl_s: float = 60.0,
    device: Device | None = None, spill_ahead: int = 0,
) -> AsyncIterator[Daemon]:
    """A daemon that is up, with its spill tier up; stopped in order at the end. `device`: where its hbm is."""
    sizes = {Tier.HBM: hbm_blocks * BLOCK, Tier.HOST: host_blocks * BLOCK}
    arenas: dict[Tier, ArenaStore] = {
        tier: HostArena({SEGMENT_OF[tier]: np.zeros(size, np.uint8)}, tier) for tier, size in sizes.items() if size
    }
    if device is not None:
        arenas[Tier.HBM] = HbmArena(device, {SEGMENT_OF[Tier.HBM]: sizes[Tier.HBM]})
    specs = [
        TierSpec(tier, ((SEGMENT_OF[tier], sizes[tier]),), readable=arena.mappable)
        for tier, arena in arenas.items()
    ]
    if spill:
        specs.append(TierSpec(Tier.SPILL, capacity_bytes=spill_bytes))
    settings = EngineSettings(
        tuple(specs), policy=policy, max_held=max_held, spill_bytes_per_s=spill_bytes_per_s, spill_ahead=spill_ahead
    )
    engine = Engine(settings, Tables.private(512, sessions=sessions, holds=4096))
    store = MemorySpillStore(4 * spill_bytes)
    store.shared = shared
    faulty = FaultySpillStore(store, script or Scripted([]))
    slot, others = SpillSlot(faulty), dict[str, SpillStore]()
    namespaces = Namespaces(directory / "namespaces.json")
    writer = Writer(engine, time.time)
    mover = Mover(
        arenas, slot if spill else None, fingerprint_of=namespaces.fingerprint_of, threads=2,
        op_timeout_s=op_timeout_s, on_results=writer.finish,
    )
    writer.carry_out_with(mover.submit)
    up = asyncio.Event()
    watch = SpillWatch(slot, writer, mover, lambda is_up: up.set() if is_up else up.clear(), probe_up_s=0.1)
    requested = {Tier.SPILL: spill_bytes if spill else 0, **sizes}
    about = About(
        boot_id=bytes([1] * 16), instance_id=bytes([2] * 16), attach_path=str(directory / "attach.sock"),
        heartbeat_ms=heartbeat_ms, max_ids=max_ids, max_held=max_held, stock_bytes=settings.stock_bytes,
        version="0.0-test",
        requested_bytes=requested, config_json='{"policy": "lru"}',
    )
    finder = Finder(writer, mover, namespaces, timeout_s=look_s, ttl_s=ttl_s)
    switch = SpillSwitch(slot, writer, mover, watch, finder, lambda url, files: _store_of(others, url, files))
    service = Service(
        writer, mover, namespaces, about, shadow=Shadow(SHADOW, settings.policy), orphans=engine.orphans,
        spill_watch=watch, finder=finder, spill_switch=switch,
    )
    address = f"unix://{directory}/tierd.sock"
    server = RpcServer(service, [address], concurrent_rpcs_max=rpcs_max)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(part.run()) for part in (watch, service.sweep, service.shadow)]
        if spill:
            async with asyncio.timeout(DEADLINE_S):
                await up.wait()
        await server.start()
        try:
            async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
                stubs = blocks_pb2_grpc.BlocksStub(channel), admin_pb2_grpc.AdminStub(channel)
                yield Daemon(
                    engine, service, server, watch, store, faulty, arenas, channel, *stubs, address, others
                )
        finally:
            await server.stop(1.0)
            await finder.stop(DEADLINE_S)
            await mover.stop(DEADLINE_S)
            for task in tasks:
                task.cancel()


def _store_of(stores: dict[str, SpillStore], url: str, files: bool) -> SpillStore:
    if not files:
        refuse_files(url)
    if url not in stores:
        raise InvalidInput("spill", "there is no such store")
    return stores[url]


def run(body: Callable[[Daemon], Awaitable[None]], directory: Path, **settings: object) -> None:
    """Runs a test's body against a running daemon, within a deadline."""

    async def main() -> None:
        async with asyncio.timeout(60), running(directory, **settings) as daemon:  # type: ignore[arg-type]
            await body(daemon)

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition of this process, giving way to whatever makes it true."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.001)
