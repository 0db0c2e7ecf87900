"""Registered by a call to the kubelet's socket in device-plugins: the way that every kubelet knows.

A kubelet that restarts removes the sockets there and forgets everybody: register with it again.
"""

import asyncio

from plugin.core.lifecycle import Situation, Step, decide
from plugin.pb.deviceplugin.v1beta1 import api_pb2 as pb
from plugin.services.endpoint import Endpoint
from plugin.services.registrar import RegisterFailedError, register
from plugin.services.registration import Basics, Registration


class SocketRegistration(Registration):
    """Registers by Register."""

    def __init__(self, basics: Basics, options: pb.DevicePluginOptions) -> None:
        super().__init__(basics)
        self._options = options

    async def _keep(self, endpoint: Endpoint) -> None:
        while True:
            decision = decide(self._situation(endpoint), self._clock.steady(), self._patience)
            match decision.step:
                case Step.RENEW:
                    return
                case Step.REGISTER:
                    await self._attempt(endpoint)
                case Step.WAIT:
                    await self._changed(decision.until)

    def _situation(self, endpoint: Endpoint) -> Situation:
        return Situation(
            own_socket=endpoint.is_there,
            kubelet=self._look_for_kubelet(),
            accepted_by=self._accepted_by,
            streams=endpoint.streams,
            quiet_since=self._quiet_since,
            had_stream=self._had_stream,
            retry_at=self._retry_at,
            renew=self._renew,
        )

    async def _attempt(self, endpoint: Endpoint) -> None:
        """Register once; given up when the kubelet's socket or the own one changes meanwhile."""
        asked = self._kubelet
        self._had_stream = endpoint.streams > 0
        call = asyncio.create_task(
            register(self._paths.registration_socket, self._resource, endpoint.path.name, self._options)
        )
        try:
            while not call.done():
                wake = asyncio.create_task(self._wake.wait())
                await asyncio.wait({call, wake}, return_when=asyncio.FIRST_COMPLETED)
                wake.cancel()
                self._wake.clear()
                if not call.done() and not (self._is(asked) and endpoint.is_there):
                    return
            call.result()
        except RegisterFailedError as error:
            self._tally.registration_errors += 1
            await self._retry_later(str(error), refused=error.refused)
        else:
            self._accept(asked)
        finally:
            call.cancel()
            # Not awaited itself: a cancellation that comes meanwhile is for this task, and must end it.
            await asyncio.wait({call})
            if not call.cancelled():
                call.exception()  # looked at, or it would be told as nobody's
