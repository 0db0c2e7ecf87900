"""Queries of the chosen source: the current mapping, one device explained, and an exporter's history.

The module imports an HTTP client, so the commands import it only when they query.
"""

from typing import Final

import click
import msgspec

from exporter.cli.client import ServerClient, StatusError, ask
from exporter.cli.common import NoMatchError
from exporter.cli.select import (
    HolderQuery,
    MappingAnswer,
    NodeDocument,
    exclusive_cpus,
    resource_among,
)
from exporter.cli.sources import ChosenSource
from exporter.views.schema import (
    AnomaliesDocument,
    ClaimsDocument,
    DevicesDocument,
    Envelope,
    ExplainDocument,
    HistoryDocument,
    PastDeviceEntry,
    PastEntry,
    PodsDocument,
)

_HISTORY: Final = "/api/v1/history"
_PAGE: Final = 1000
"""Holdings of a page, the most that the API returns."""
_ATTEMPTS: Final = 5
"""Attempts to read all documents of one generation."""


def current_mapping(source: ChosenSource, at: float | None = None) -> MappingAnswer:
    """Who holds which device, now or (Prometheus) at unix time `at`. Raises AskError and BadParameter."""
    if source.kind == "kubelet":
        from exporter.cli import kubelet  # noqa: PLC0415 -- gRPC takes long to import

        return kubelet.current_mapping(source)
    if source.kind == "prometheus":
        from exporter.cli import prometheus  # noqa: PLC0415 -- its structs take long to create

        return ask(
            source,
            lambda client: prometheus.fetch_mapping(
                client, selector=source.selector, node=source.node, at=at
            ),
        )
    return ask(source, _fetch_from_exporter)


def _fetch_from_exporter(client: ServerClient) -> MappingAnswer:
    """Devices, claims and exclusive CPUs of one generation, from three documents."""
    attempt = 0
    while True:
        attempt += 1
        devices = client.document("/api/v1/devices", DevicesDocument)
        claims, pods, notes = _fetch_claims_and_pods(client)
        generations = {one.generation for one in (devices, claims, pods) if one is not None}
        if len(generations) == 1 or attempt == _ATTEMPTS:
            break
    if len(generations) > 1:
        notes = (*notes, "devices and claims are from slightly different times, because they change often")
    if claims is not None and claims.claims and not any(one.claimed for one in devices.devices):
        notes = (*notes, "this exporter is older: claimed devices are in -o json only")
    node = NodeDocument(
        **{name: getattr(devices, name) for name in Envelope.__struct_fields__},
        devices=devices.devices,
        claims=() if claims is None else claims.claims,
        cpus=() if pods is None else exclusive_cpus(pods.pods),
    )
    return MappingAnswer((node,), f"the exporter at {client.address}", notes=notes)


def _fetch_claims_and_pods(
    client: ServerClient,
) -> tuple[ClaimsDocument | None, PodsDocument | None, tuple[str, ...]]:
    try:
        claims = client.document("/api/v1/claims", ClaimsDocument)
        pods = client.document("/api/v1/pods", PodsDocument)
    except StatusError as error:
        if error.status != 404:
            raise
        return None, None, ("this exporter is older: it has neither claimed devices nor exclusive CPUs",)
    return claims, pods, ()


def anomalies(source: ChosenSource) -> AnomaliesDocument:
    """The anomalies of an exporter's node. Raises AskError and BadParameter."""
    return ask(source, lambda client: client.document("/api/v1/anomalies", AnomaliesDocument))


def explanation(source: ChosenSource, resource: str, device: str) -> tuple[ExplainDocument, tuple[str, ...]]:
    """One device explained, and warnings. Raises NoMatchError, AskError and BadParameter."""
    if source.kind == "kubelet":
        from exporter.cli import kubelet  # noqa: PLC0415 -- as above

        return kubelet.explanation(source, resource, device)
    query = {"device": device} | ({"resource": resource} if resource else {})
    try:
        return ask(source, lambda client: client.document("/api/v1/explain", ExplainDocument, query)), ()
    except StatusError as error:
        if error.nothing_found:
            raise NoMatchError(error.detail) from error
        if error.status == 400 and error.detail:
            raise click.BadParameter(error.detail, param_hint="DEVICE") from error
        raise


def history(
    source: ChosenSource, query: HolderQuery, *, limit: int, **times: float | None
) -> HistoryDocument:
    """Up to `limit` holdings, newest first, and then devices, from all pages. `times` are at, from and to, in
    unix seconds.

    The exporter filters by the pod, the resource or driver, and the device. Raises AskError and BadParameter.
    """
    parameters = {name: f"{at:.6f}" for name, at in times.items() if at is not None}
    if query.pod is not None:
        parameters |= {"namespace": query.pod.namespace}
        parameters |= {"pod": query.pod.name} if query.pod.name else {}
    if query.device:
        parameters["device"] = query.device

    def fetch(client: ServerClient) -> HistoryDocument:
        filters = dict(parameters)
        if query.resource:
            known = client.document(_HISTORY, HistoryDocument, parameters | {"limit": "1"})
            resource = resource_among(known.resources, query.resource)
            filters |= {"resource": resource} if resource else {"driver": query.resource}
        return _fetch_pages(client, filters, limit)

    try:
        return ask(source, fetch)
    except StatusError as error:
        if error.status == 400 and error.detail:
            raise click.UsageError(error.detail) from error
        raise


def _fetch_pages(client: ServerClient, parameters: dict[str, str], limit: int) -> HistoryDocument:
    holdings: list[PastEntry] = []
    devices: list[PastDeviceEntry] = []
    page: dict[str, str] = {}
    while True:
        page["limit"] = str(min(_PAGE, limit - len(holdings) - len(devices)))
        document = client.document(_HISTORY, HistoryDocument, parameters | page)
        if any(match.parameter == "pod" and not match.whole for match in document.matched):
            # As in `devicelens who`, a pod's name is whole.
            return msgspec.structs.replace(document, holdings=(), next=None)
        holdings.extend(document.holdings)
        devices.extend(document.devices)
        if document.next is None or len(holdings) + len(devices) >= limit:
            return msgspec.structs.replace(document, holdings=tuple(holdings), devices=tuple(devices))
        page["cursor"] = document.next
