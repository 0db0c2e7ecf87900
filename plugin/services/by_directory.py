"""Registered by directory: a socket in plugins_registry, at which the kubelet asks who it is.

A kubelet that restarts finds the socket again by itself. A stream that broke it does not open again:
then the socket is made anew. Always under the same name, for of two names it would undo the one and do
the other at the same time, and who has the resource then is chance; of one it does one after the other.
"""

# ruff: noqa: ARG002, N802 -- the names and parameters of the methods are the API's

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc.aio

from plugin.core.lifecycle import DirectorySituation, Step, decide_by_directory
from plugin.pb.pluginregistration.v1 import api_pb2 as pb
from plugin.pb.pluginregistration.v1 import api_pb2_grpc as pb_grpc
from plugin.services.endpoint import Endpoint
from plugin.services.registration import Basics, Registration

TYPE: Final = "DevicePlugin"
VERSION: Final = "v1beta1"

_Context = grpc.aio.ServicerContext[Any, Any]


class DirectoryRegistration(Registration):
    """Is registered by being there. A socket is made under a hidden name, which the kubelet leaves alone."""

    def __init__(self, basics: Basics) -> None:
        super().__init__(basics)
        self._renewals = 0
        self._refused = False

    async def _open(self, endpoint: Endpoint) -> None:
        endpoint.serve(
            lambda server: pb_grpc.add_RegistrationServicer_to_server(
                Servicer(self._resource, self._notified), server
            )
        )
        await endpoint.open()
        self._refused = False
        endpoint.publish(self._names.standing)

    def _notified(self, problem: str | None) -> None:
        """The kubelet says how it went; `problem`: None where it accepted."""
        if problem is None:
            self._refused = False
            self._had_stream = self.streams > 0
            self._accept(self._look_for_kubelet())
        else:
            self._tally.registration_errors += 1
            self._refused = True
            self._failed(problem, refused=True)
            self._retry_at = max(self._retry_at, self._clock.steady() + self._patience.refused)
        self._wake.set()

    async def _keep(self, endpoint: Endpoint) -> None:
        while True:
            decision = decide_by_directory(self._situation(endpoint), self._clock.steady(), self._patience)
            if decision.step is Step.WAIT:
                await self._changed(decision.until)
            elif not endpoint.is_there or self._renew or self._refused:
                return
            elif _listens(self._paths.registration_socket):
                self._renewals += 1
                self._failing.failed("the kubelet does not follow it, its socket is made anew", level="warn")
                return
            else:
                # Not before it runs can it have taken notice.
                self._quiet_since = self._clock.steady()

    def _situation(self, endpoint: Endpoint) -> DirectorySituation:
        before = self._kubelet
        kubelet = self._look_for_kubelet()
        if kubelet != before:
            self._quiet_since = self._clock.steady()
            self._had_stream = endpoint.streams > 0
        if endpoint.streams:
            self._renewals = 0
            self._failing.recovered()
        return DirectorySituation(
            own_socket=endpoint.is_there,
            kubelet=kubelet,
            streams=endpoint.streams,
            quiet_since=self._quiet_since,
            had_stream=self._had_stream,
            refused=self._refused,
            retry_at=self._retry_at,
            renewals=self._renewals,
            renew=self._renew,
        )


class Servicer(pb_grpc.RegistrationServicer):
    """The Registration service of a plugin; every method's name and shape is the API's."""

    def __init__(self, resource: str, notified: Callable[[str | None], None]) -> None:
        self._resource = resource
        self._notified = notified

    async def GetInfo(self, request: pb.InfoRequest, context: _Context) -> pb.PluginInfo:
        """Who this is. Without an endpoint: this very socket, wherever the kubelet sees it."""
        return pb.PluginInfo(type=TYPE, name=self._resource, supported_versions=[VERSION])

    async def NotifyRegistrationStatus(
        self, request: pb.RegistrationStatus, context: _Context
    ) -> pb.RegistrationStatusResponse:
        """How the kubelet's registration went."""
        accepted = request.plugin_registered
        self._notified(None if accepted else request.error or "the kubelet refused it without a reason")
        return pb.RegistrationStatusResponse()


def _listens(path: Path) -> bool:
    """Whether somebody listens on a socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0)
        try:
            probe.connect(str(path))
        except BlockingIOError:
            return True
        except OSError:
            return False
    return True
