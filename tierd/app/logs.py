"""The log: one line per event on stderr, for people or as JSON; repeated ones are counted instead."""

from __future__ import annotations

import atexit
import logging
import sys
from typing import Any

import structlog
from structlog.tracebacks import ExceptionDictTransformer

from tierd.app.log_limit import RepeatLimit

# Without the variables of each frame: among them are passwords, tokens and payload.
_TRACEBACKS = structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False))


def configure(level: str, json_lines: bool) -> None:
    """Sets the log up for the process, the libraries' warnings included. `level`: as in `logging`."""
    renderer: Any = structlog.processors.JSONRenderer() if json_lines else structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    limit = RepeatLimit()
    atexit.register(limit.flush, all_=True)
    structlog.configure(
        processors=[
            limit,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            *([_TRACEBACKS] if json_lines else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, handlers=[_Forward()], force=True)


class _Forward(logging.Handler):
    """Passes what libraries log (asyncio, grpc) into the same lines."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger(record.name)
        log.log(record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info or None)
