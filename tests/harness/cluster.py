"""A node of a real cluster: pods by its API server, the truth from its kubelet's own socket.

Chosen by environment: DEVICELENS_E2E_KUBECONFIG, DEVICELENS_E2E_NODE, DEVICELENS_E2E_IMAGE (for the
pods; never pulled; its entry point must stay up), DEVICELENS_E2E_KUBELET_ROOT and
DEVICELENS_E2E_RESTART_KUBELET (a command). The tests run on that very node, as root.
"""

import asyncio
import os
from pathlib import Path
from typing import Any, Self

import grpc
import pytest
from lightkube import ApiError, AsyncClient, KubeConfig
from lightkube.models.core_v1 import Container, PodSpec, ResourceRequirements, Toleration
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Node as ApiNode
from lightkube.resources.core_v1 import Pod as ApiPod

from harness.node import Holding, Pod, Refused
from harness.waiting import until
from kubelet.pb.podresources.v1.api_pb2 import ListPodResourcesRequest, ListPodResourcesResponse

_RACES = ("OutOf", "UnexpectedAdmissionError", "NodeAffinity")
"""Admission failures that a workload's controller would try again: the kubelet sees its own node late."""


_ADMITTED = "admitted"


class ClusterNode:
    """The node that the environment names."""

    def __init__(self) -> None:
        self.name = os.environ["DEVICELENS_E2E_NODE"]
        self.root = Path(os.environ.get("DEVICELENS_E2E_KUBELET_ROOT", "/var/lib/kubelet"))
        self.namespace = os.environ.get("DEVICELENS_E2E_NAMESPACE", "default")
        self.limit = 90.0
        self._image = os.environ["DEVICELENS_E2E_IMAGE"]
        self._kubeconfig = os.environ["DEVICELENS_E2E_KUBECONFIG"]
        config = KubeConfig.from_file(self._kubeconfig).get()
        self._client = AsyncClient(config, namespace=self.namespace)
        self._made: set[str] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in tuple(self._made):
            await self.delete_pod(name)
        await self._client.close()

    def source_flags(self, source: str) -> tuple[str, ...]:
        if source == "pods-api" and not (self.root / "pods-api" / "pods-api.sock").exists():
            pytest.skip("this kubelet serves no Pods API: it needs the feature gate PodsAPI")
        given = ("--pods.source", source)
        return (*given, "--kubeconfig", self._kubeconfig) if source == "apiserver" else given

    async def add_pod(self, pod: Pod) -> str:
        loop = asyncio.get_running_loop()
        end = loop.time() + self.limit
        while True:
            reason = await self._try_pod(pod)
            if reason is None:
                return await self.uid(pod.name)
            await self.delete_pod(pod.name)
            if not reason.startswith(_RACES) or loop.time() > end:
                raise Refused(reason)
            await asyncio.sleep(1.0)

    async def _try_pod(self, pod: Pod) -> str | None:
        """Make the pod and wait until it holds what it asks for; the reason if it is refused."""
        self._made.add(pod.name)
        await self._client.create(self._manifest(pod))
        expected = sum(sum(wish.values()) for wish in (*pod.containers.values(), *pod.sidecars.values()))

        async def settled() -> str | None:
            status = (await self._client.get(ApiPod, pod.name)).status
            if status is not None and status.phase == "Failed":
                return f"{status.reason}: {status.message}"
            held = sum(holding.pod == pod.name for holding in await self.holdings())
            running = status is not None and status.phase == "Running"
            if pod.inits:  # kubelet: List does not name what they hold
                running = status is not None and bool(status.initContainerStatuses)
            return _ADMITTED if held >= expected and (held or running) else None

        outcome = await until(
            f"pod {pod.name} holds {expected} devices", settled, limit=self.limit, pause=0.1
        )
        return None if outcome is _ADMITTED else outcome

    async def uid(self, name: str) -> str:
        metadata = (await self._client.get(ApiPod, name)).metadata
        assert metadata is not None
        assert metadata.uid is not None
        return metadata.uid

    async def end_pod(self, name: str) -> None:
        # The image's program does not end by itself: the kubelet ends a pod that is past its deadline.
        await self._client.patch(ApiPod, name, {"spec": {"activeDeadlineSeconds": 1}})

        async def ended() -> bool:
            status = (await self._client.get(ApiPod, name)).status
            return status is not None and status.phase in {"Failed", "Succeeded"}

        await until(f"pod {name} has ended", ended, limit=self.limit, pause=0.1)

    def _manifest(self, pod: Pod) -> ApiPod:
        def container(name: str, wish: dict[str, int], **more: Any) -> Container:
            limits = {resource: str(count) for resource, count in wish.items()}
            return Container(
                name=name,
                image=self._image,
                imagePullPolicy="Never",
                resources=ResourceRequirements(limits=limits, requests=limits),
                **more,
            )

        return ApiPod(
            metadata=ObjectMeta(
                name=pod.name, namespace=self.namespace, labels={"app": "devicelens-e2e"} | pod.labels
            ),
            spec=PodSpec(
                # Bound here, as a DaemonSet's pods once were: the test needs no scheduler and no network.
                nodeName=self.name,
                hostNetwork=True,
                automountServiceAccountToken=False,
                enableServiceLinks=False,
                terminationGracePeriodSeconds=1,
                tolerations=[Toleration(operator="Exists")],
                initContainers=[
                    *(container(name, wish, restartPolicy="Always") for name, wish in pod.sidecars.items()),
                    *(container(name, wish) for name, wish in pod.inits.items()),
                ],
                containers=[container(name, wish) for name, wish in pod.containers.items()],
            ),
        )

    async def delete_pod(self, name: str) -> None:
        try:
            await self._client.delete(ApiPod, name, grace_period=1)
        except ApiError as error:
            if error.status.code != 404:
                raise

        async def gone() -> bool:
            try:
                await self._client.get(ApiPod, name)
            except ApiError as error:
                return error.status.code == 404
            return False

        await until(f"pod {name} is gone", gone, limit=self.limit, pause=0.1)
        self._made.discard(name)

    async def restart_kubelet(self) -> None:
        command = os.environ.get("DEVICELENS_E2E_RESTART_KUBELET")
        if not command:
            pytest.skip("DEVICELENS_E2E_RESTART_KUBELET names no command that restarts the kubelet")
        process = await asyncio.create_subprocess_shell(command)
        status = await process.wait()
        assert status == 0, f"{command!r} ended with {status}"

    async def capacity(self, resource: str) -> int:
        return await self._node_status("capacity", resource)

    async def allocatable(self, resource: str) -> int:
        return await self._node_status("allocatable", resource)

    async def _node_status(self, part: str, resource: str) -> int:
        status = (await self._client.get(ApiNode, self.name)).status
        return int((getattr(status, part) or {}).get(resource, "0"))

    async def holdings(self) -> frozenset[Holding]:
        target = f"unix:{self.root / 'pod-resources' / 'kubelet.sock'}"
        options = [("grpc.max_receive_message_length", 16 << 20), ("grpc.default_authority", "localhost")]
        async with grpc.aio.insecure_channel(target, options=options) as channel:
            ask = channel.unary_unary(
                "/v1.PodResourcesLister/List",
                request_serializer=ListPodResourcesRequest.SerializeToString,
                response_deserializer=ListPodResourcesResponse.FromString,
            )
            try:
                answer = await ask(ListPodResourcesRequest(), timeout=5)
            except grpc.aio.AioRpcError as error:
                raise AssertionError(
                    f"the kubelet does not answer: {error.code()} {error.details()}"
                ) from error
        return frozenset(
            Holding(entry.resource_name, device, pod.name, container.name)
            for pod in answer.pod_resources
            if pod.namespace == self.namespace
            for container in pod.containers
            for entry in container.devices
            for device in entry.device_ids
        )
