"""Connects a client: `async with` creates the client's parts, and closes them in order."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from bookie.cluster.registration_record import Registration
from bookie.config import RpcSettings, Sources
from bookie.env.forks import grpc_use
from bookie.errors import BadRequestError, ClientClosedError
from bookie.ledger.ledger_client import LedgerClient, open_ledger_client
from bookie.log.log_client import LogClient
from bookie.metadata.connect import open_store
from bookie.metadata.security import MetadataSecurity
from bookie.metadata.uri import shown_uri


class ClusterConnection:
    """The base of `BookKeeper`: an async context manager that connects and closes the client."""

    def __init__(
        self,
        metadata_uri: str,
        sources: Sources,
        rpc: RpcSettings,
        *,
        session_timeout_seconds: float,
        security: MetadataSecurity | None = None,
        names_writer: bool = True,
    ) -> None:
        self._metadata_uri = metadata_uri
        self._session_timeout_seconds = session_timeout_seconds
        self._security = security
        self._names_writer = names_writer
        self._sources = sources
        self._rpc = rpc
        self._resources = AsyncExitStack()
        self._entered: LogClient | None = None

    async def __aenter__(self) -> Self:
        if self._entered is not None:
            raise BadRequestError("the client is connected already")
        grpc_use.begin()
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(
                open_store(
                    self._metadata_uri,
                    session_timeout_seconds=self._session_timeout_seconds,
                    security=self._security,
                    create=False,
                )
            )
            configuration = store
            if uri := self._sources.settings().metadata.configuration_uri:
                configuration = await stack.enter_async_context(
                    open_store(uri, security=self._security)
                )
            ledgers = await stack.enter_async_context(
                open_ledger_client(store, self._sources, self._rpc, names_writer=self._names_writer)
            )
            entered = LogClient(ledgers, store, configuration)
            entered.require_here()
            self._entered = entered
            self._resources = stack.pop_all()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the client, as the end of its block does.

        If the client is not connected, do nothing.
        """
        entered, self._entered = self._entered, None
        if entered is None:
            return
        async with AsyncExitStack() as steps:
            # The callbacks run in reverse order. Each callback runs even if an earlier callback
            # fails or is cancelled.
            steps.push_async_callback(self._resources.aclose)
            steps.push_async_callback(entered.close)

    def __repr__(self) -> str:
        state = "not connected" if self._entered is None else "connected"
        return f"<{type(self).__name__} {shown_uri(str(self._metadata_uri))!r}, {state}>"

    @property
    def instance_id(self) -> str:
        return self._connected.instance_id

    def bookies(self) -> Mapping[str, Registration]:
        """Return the bookies that are registered now, by id, including read-only bookies."""
        return self._connected.directory.all()

    @property
    def _connected(self) -> LedgerClient:
        return self._logs.ledgers

    @property
    def _ledgers_here(self) -> LedgerClient:
        return self._logs_here.ledgers

    @property
    def _logs_here(self) -> LogClient:
        """The log client, after a check that the current event loop is the client's event loop."""
        logs = self._logs
        logs.require_here()
        return logs

    @property
    def _logs(self) -> LogClient:
        if self._entered is None:
            raise ClientClosedError("the client is not connected; use it as `async with`")
        return self._entered
