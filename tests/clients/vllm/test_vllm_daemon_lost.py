"""vLLM without its daemon: it answers as if there had never been one, says so once, and uses it when it is back."""

from __future__ import annotations

import os
import signal

from vllm_answers import FULL, PROMPT, again, same, spec, wait_for
from vllm_process import StartEngine

from tierd.testing.serve import StartDaemon
from tierd_client import Client, Tier


def test_an_engine_goes_on_without_its_daemon(daemon: StartDaemon, start_engine: StartEngine) -> None:
    """Started before the daemon, and while it is killed or stopped, the engine computes the same answer; one line
    says what to do; with the daemon back it stores and finds blocks again."""
    server = daemon(host_bytes="256MiB", start=False)
    engine = start_engine(spec(server, answer_ms=1_000), processes=True)
    cold = engine.generate(*PROMPT)
    assert cold["cached"] == 0
    server.start()
    with Client(server.address) as client:
        def found() -> bool:
            return again(engine)["cached"] == FULL

        assert wait_for(found)
        os.kill(server.pid, signal.SIGSTOP)
        stopped = again(engine)
        os.kill(server.pid, signal.SIGCONT)
        assert same(stopped, cold)
        assert wait_for(found)
        server.kill()
        killed = again(engine)
        assert killed["cached"] == 0 and same(killed, cold)
        server.start()
        assert wait_for(found)
        assert client.admin.occupancy().tiers[Tier.HOST].blocks >= FULL // 32
    lines = [line for line in engine.log if "is away" in line]
    assert lines and len(lines) <= 4 and "tierd serve" in lines[0]
