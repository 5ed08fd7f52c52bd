"""What is answered over HTTP: /metrics, /healthz, /readyz. All of it is for reading; blocks are not to be had."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tierd.app.readiness import Finding, Readiness, Status, status_of
from tierd.app.service import Service
from tierd.web.metrics import Exporter

CAN_SERVE, CANNOT_SERVE = 200, 503


def application(service: Service, readiness: Readiness) -> Starlette:
    """The routes on a running daemon."""
    exporter = Exporter(service)

    async def metrics(_: Request) -> Response:
        return Response(exporter.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthz(_: Request) -> Response:
        """That this is answered is all there is to say: the event loop runs."""
        return JSONResponse({"status": "alive", "version": service.about.version})

    async def readyz(_: Request) -> Response:
        """200 while puts and gets are done, also without the spill tier; 503 when one cannot be."""
        findings = await readiness.check(*readiness.tiers)
        status = status_of(findings)
        return _told(findings, status, status is not Status.UNAVAILABLE)

    async def readyz_tier(request: Request) -> Response:
        """200 or 503 for one tier, the spill tier included; 404 for one that is off or unknown."""
        name = str(request.path_params["tier"])
        tier = next((one for one in readiness.tiers if one.name.lower() == name), None)
        if tier is None:
            return JSONResponse({"status": "off", "tiers": {}}, 404)
        (finding,) = await readiness.check(tier)
        return _told([finding], Status.READY if finding.ok else Status.UNAVAILABLE, finding.ok)

    return Starlette(routes=[
        Route("/metrics", metrics), Route("/healthz", healthz), Route("/readyz", readyz),
        Route("/readyz/{tier}", readyz_tier),
    ])


def _told(findings: Sequence[Finding], status: Status, serves: bool) -> Response:
    tiers = {one.tier.name.lower(): {"ok": one.ok, "detail": one.detail} for one in findings}
    failed = [name for name, one in tiers.items() if not one["ok"]]
    body = {"status": status.value, "failed": failed, "tiers": tiers}
    return JSONResponse(body, CAN_SERVE if serves else CANNOT_SERVE, {"Cache-Control": "no-store"})
