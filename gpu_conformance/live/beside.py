"""A live engine in a process of its own: one that hangs, or ends its process, takes nobody along.

Entry point: `EngineBeside`, which is served like any other engine.
"""

from __future__ import annotations

import contextlib
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from attrs import define, field, frozen

from checkers.errors import EngineFault, HarnessError
from checkers.processes import describe_end, end_session, lead_session, start_process
from gpu_conformance.faults import format_end
from gpu_conformance.live.interface import Served
from gpu_conformance.registry import NotHere
from gpu_conformance.subject import find_attribute
from gpu_conformance.way import Way

START_S = 120.0
"""How long the process may take before it turns to the engine; that is no fault of the engine."""


@frozen(kw_only=True)
class Reply:
    """What the process says: that it is there, what was served, or why not."""

    block_size: int = 0
    served: Any = None
    unusable: str = ""
    """Why there is no such engine."""
    not_here: str = ""
    error: str = ""
    """What the engine raised."""
    trace: str = ""


@define
class EngineBeside:
    """An adapter by its target `module:attribute`, and the process that it lives in.

    Raises `HarnessError` if it cannot be made, `EngineFault` if it raises, ends its process, or
    does not answer in time. The next call then starts another process.
    """

    target: str
    model: str
    dtype: str
    device: str
    limit_s: float
    """How long an answer may take; that the engine is made is one."""
    _block_size: int = field(default=0, init=False)
    _process: BaseProcess | None = field(default=None, init=False)
    _connection: Connection | None = field(default=None, init=False)

    @property
    def block_size(self) -> int:
        """That of the engine, which is made if it is not there yet."""
        if self._process is None:
            self._start()
        return self._block_size

    def serve(self, way: Way) -> Served:
        """Asks the engine in its process."""
        if self._process is None:
            self._start()
        assert self._connection is not None, "it was just started"
        with contextlib.suppress(BrokenPipeError):  # That it has ended is found out in a moment.
            self._connection.send(way)
        reply = self._hear(self.limit_s)
        if reply.not_here:
            raise NotHere(reply.not_here)
        if reply.error:
            raise EngineFault("engine_raises", reply.error, reply.trace)
        served: Served = reply.served
        return served

    def close(self) -> None:
        """Ends the process, and whatever it has started."""
        if self._process is None or self._connection is None:
            return
        end_session(self._process)
        self._connection.close()
        self._process = self._connection = None

    def _start(self) -> None:
        arguments = (self.target, self.model, self.dtype, self.device)
        # Not a daemon, since an engine may have processes of its own.
        self._process, self._connection = start_process(_serve, *arguments, is_daemon=False)
        self._hear(max(START_S, self.limit_s))
        self._block_size = self._hear(self.limit_s).block_size

    def _hear(self, limit_s: float) -> Reply:
        assert self._process is not None, "somebody is there to be heard"
        assert self._connection is not None, "somebody is there to be heard"
        has_answer = self._connection.poll(limit_s)
        try:
            reply: Reply = self._connection.recv() if has_answer else Reply()
        except (EOFError, ConnectionResetError):
            evidence = describe_end(self._process)
            self.close()
            raise EngineFault("engine_raises", evidence) from None
        if not has_answer:
            self.close()
            raise EngineFault("engine_hangs", f"did not answer within {limit_s:g} s")
        if reply.unusable:
            self.close()
            raise HarnessError(reply.unusable)
        return reply


# ---- in the process ------------------------------------------------------------------------------


def _serve(connection: Connection, target: str, *arguments: str) -> None:
    lead_session()
    with contextlib.suppress(EOFError, BrokenPipeError):  # The command has ended.
        connection.send(Reply())
        try:
            engine, block_size = make_engine(target, *arguments)
        except HarnessError as error:
            connection.send(Reply(unusable=str(error)))
            return
        connection.send(Reply(block_size=block_size))
        while True:
            connection.send(_answer(engine, connection.recv()))


def make_engine(target: str, model: str, dtype: str, device: str) -> tuple[Any, int]:
    """Makes an engine; returns it with its block size. Raises `HarnessError` if there is none."""
    make = find_attribute("--live", target)
    try:
        engine = make(model, dtype, device)
    except HarnessError:
        raise
    except (Exception, SystemExit) as error:
        raise HarnessError(
            f"--live {target} cannot be made of {model}, {dtype} and {device}: "
            f"{type(error).__name__}: {error}"
        ) from error
    block_size = getattr(engine, "block_size", None)
    if not callable(getattr(engine, "serve", None)) or type(block_size) is not int:
        raise HarnessError(
            f"--live {target} makes a {type(engine).__name__}; it needs a whole number block_size "
            "and a method serve(way)"
        )
    return engine, block_size


def _answer(engine: Any, way: Way) -> Reply:
    try:
        return Reply(served=engine.serve(way))
    except HarnessError as error:
        return Reply(unusable=str(error))
    except NotHere as reason:
        return Reply(not_here=str(reason) or "the engine refuses")
    except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever it raises is told)
        return Reply(error=f"{type(error).__name__}: {error}", trace=format_end(error))
