"""Errors and gRPC status: the table is complete, and what is unexpected is INTERNAL with a reference."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import structlog
from rpc_daemon import Daemon, block_ids, run

from tierd.app import namespaces
from tierd.core import errors
from tierd.rpc.status import STATUS, status_of
from tierd_client.v1 import blocks_pb2 as pb


def subclasses(of: type[errors.TierdError]) -> Iterator[type[errors.TierdError]]:
    yield of
    for one in of.__subclasses__():
        yield from subclasses(one)


def test_each_error_has_a_row() -> None:
    """Every error of the core stands in the table of statuses and in the tree at the top of its module; one
    that another layer derives has the row of the kind it is one of."""
    tree = errors.__doc__ or ""
    for error in subclasses(errors.TierdError):
        if error.__module__ == errors.__name__:
            assert error in STATUS, f"{error.__name__} has no status"
            assert error.__name__ in tree, f"{error.__name__} is not drawn in the tree"
        else:
            assert any(kind in STATUS for kind in error.__mro__), f"{error.__name__} has no status"


def test_a_derived_error_has_the_status_of_its_kind() -> None:
    """A refusal that an adapter names more narrowly is still a refusal."""

    class Narrower(errors.Refused):
        pass

    assert status_of(Narrower("x")) is grpc.StatusCode.FAILED_PRECONDITION


def test_nothing_is_unknown() -> None:
    """No error maps to UNKNOWN, OK or CANCELLED; what is in no row is INTERNAL."""
    bad = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.OK, grpc.StatusCode.CANCELLED}
    assert not bad & set(STATUS.values())
    assert status_of(ValueError("x")) is status_of(KeyError("x")) is grpc.StatusCode.INTERNAL
    assert status_of(errors.IllegalTransition("x")) is grpc.StatusCode.INTERNAL

    class New(errors.TierdError):
        pass

    assert status_of(New("x")) is grpc.StatusCode.INTERNAL


def test_a_fault_of_the_engine(tmp_path: Path) -> None:
    """A bug in the engine ends one call as INTERNAL, under a reference that the log has; the daemon goes on."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        engine_step, d.engine.step = d.engine.step, _broken  # type: ignore[method-assign]
        with structlog.testing.capture_logs() as logs, pytest.raises(grpc.aio.AioRpcError) as caught:
            await d.blocks.Lookup(pb.LookupRequest(blocks=block_ids(1)))
        d.engine.step = engine_step  # type: ignore[method-assign]
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        details = str(caught.value.details())
        reference = next(line["reference"] for line in logs if line["event"] == "internal_error")
        assert reference in details and "secret of the core" not in details
        assert any(line["event"] == "engine_fault" and line["command"] == "Lookup" for line in logs)
        assert await d.tiers_of(block_ids(1)) == [0]

    run(body, tmp_path)


def _broken(command: object, now: float) -> None:
    raise ZeroDivisionError("secret of the core")


def test_details_are_bounded(tmp_path: Path) -> None:
    """A long message is cut, because gRPC sends it as a header."""

    async def body(d: Daemon) -> None:
        d.service.lookup = _long  # type: ignore[method-assign]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await d.blocks.Lookup(pb.LookupRequest(blocks=block_ids(1)))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert len(str(caught.value.details())) == 2000

    run(body, tmp_path)


async def _long(blocks: object, deadline: float) -> None:
    raise errors.NotFound("x" * 50_000)


def test_a_full_disk_is_no_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace that cannot be written down is UNAVAILABLE, in the words of the disk, and registers later."""

    async def body(d: Daemon) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(namespaces, "_write", _full)
            with pytest.raises(grpc.aio.AioRpcError, match=r"cannot be written.*No space") as caught:
                await d.namespace()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert await d.namespace() == 1

    run(body, tmp_path)


def _full(path: Path, rows: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", str(path))
