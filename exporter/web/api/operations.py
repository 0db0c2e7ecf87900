"""What is at each address that programs use. Pure; imported for the index and the OpenAPI document."""

from dataclasses import dataclass
from typing import Final

from msgspec import Struct

from exporter.web.api import parameters as p
from exporter.web.api.about_schema import IndexDocument
from exporter.web.api.explain_schema import ExplainDocument
from exporter.web.api.history_schema import HistoryDocument
from exporter.web.api.parameters import Parameter
from exporter.web.api.schema import (
    AnomaliesDocument,
    ClaimsDocument,
    DevicesDocument,
    PodsDocument,
    ResourcesDocument,
    StatusDocument,
)


@dataclass(frozen=True, slots=True)
class Operation:
    """An address: what it is for; what it answers, None where that is no JSON of ours.

    `tagged`: it has an ETag. `mapped`: it is 503 until there is a mapping, and then says when that was taken.
    """

    path: str
    name: str
    summary: str
    description: str
    answer: type[Struct] | None = None
    parameters: tuple[Parameter, ...] = ()
    tagged: bool = False
    mapped: bool = False


OPERATIONS: Final = (
    Operation(
        "/api/v1",
        "getIndex",
        "What the API has",
        "Every address with the query parameters that it knows.",
        IndexDocument,
    ),
    Operation(
        "/api/v1/devices",
        "listDevices",
        "Devices and who holds them",
        "Every device that is allocatable or held, or that its plugin tells of, whoever's plugin serves it. "
        "Sorted by resource, then device. A device is kept whole: with every holder, also those that the "
        "filters do not name.",
        DevicesDocument,
        p.FILTERS,
        tagged=True,
        mapped=True,
    ),
    Operation(
        "/api/v1/pods",
        "listPods",
        "Pods and what they hold",
        "Every pod that holds devices, claimed devices, exclusive CPUs or pinned memory. Sorted by "
        "namespace, then name; containers, and what each holds, by name. A pod is kept whole where the "
        "filters keep one of the things that it holds.",
        PodsDocument,
        p.PODS,
        tagged=True,
        mapped=True,
    ),
    Operation(
        "/api/v1/claims",
        "listClaims",
        "Devices given through ResourceClaims (DRA)",
        "Every claimed device and who holds it. Sorted by driver, pool, device and share. A device is kept "
        "whole where one of its holders has the claim, the namespace and the pod that are asked for.",
        ClaimsDocument,
        (p.Q, p.DRIVER, p.POOL, p.DEVICE, p.CLAIM, p.NAMESPACE, p.POD),
        tagged=True,
        mapped=True,
    ),
    Operation(
        "/api/v1/resources",
        "listResources",
        "Counts of each resource",
        "How many of each resource's devices there are, can be given out, are held, are unhealthy, and are "
        "free. Sorted by name.",
        ResourcesDocument,
        (p.Q, p.RESOURCE),
        tagged=True,
        mapped=True,
    ),
    Operation(
        "/api/v1/anomalies",
        "listAnomalies",
        "What is wrong",
        "Each thing that is wrong now, in words and in facts. Sorted by kind, resource, device and holder. "
        "Kept by what it is, and by any of the devices and pods that are part of it.",
        AnomaliesDocument,
        (p.Q, p.KIND, p.RESOURCE, p.DEVICE, p.NAMESPACE, p.POD),
        tagged=True,
        mapped=True,
    ),
    Operation(
        "/api/v1/status",
        "getStatus",
        "The exporter itself",
        "What it asks and when, what it cannot tell, and how much of everything there is. Answered before "
        "there is a mapping too.",
        StatusDocument,
        tagged=True,
    ),
    Operation(
        "/api/v1/explain",
        "explainDevice",
        "One device explained",
        "How its id was read, who holds it, and why it is or is not attributed: in sentences first, in facts "
        "after. What ages there are in the sentences are those of the answer's Date.",
        ExplainDocument,
        (p.EXPLAINED, p.OF_RESOURCE),
        tagged=True,
        mapped=True,
    ),
    Operation(
        "/api/v1/history",
        "findHistory",
        "Who held what, when",
        "Holdings at a moment (`at`) or in a range (`from`, `to`, either may be left out), newest first by "
        "the earliest time at which each may have begun, then by number. Names are whole. At most `limit` of "
        "them; `next` goes on where they end, and stays valid while holdings come and go. `at` excludes "
        "`from` and `to`; `from` is not after `to`; `container` needs `pod`, `uid` or `device` beside it. "
        "Answered before there is a mapping too.",
        HistoryDocument,
        p.PAST,
        tagged=True,
    ),
    Operation(
        "/api/v1/events",
        "followEvents",
        "A word whenever something changed",
        "Server-sent events, until either side ends. `generation` comes at once and whenever the mapping, "
        "its freshness or its failure changed: its data is the generation, its id the ETag (without W/ and "
        "quotes) of what there is to fetch now. `refreshed` comes when the kubelet answered and said the "
        "same: its data is when, in RFC 3339. At most four events a second; a comment every 15 seconds. "
        "Nothing is lost by reconnecting, for the first event tells of the present.",
    ),
    Operation(
        "/api/openapi.json", "getOpenapi", "This document", "OpenAPI 3.1 of this version.", tagged=True
    ),
    Operation(
        "/metrics",
        "getMetrics",
        "For Prometheus",
        "Every metric family of docs/metrics.md: text 0.0.4, or OpenMetrics 1.0 where Accept prefers it.",
    ),
    Operation(
        "/-/healthy",
        "getHealthy",
        "Whether the process lives",
        "200 whenever it can answer at all: for a liveness probe.",
    ),
    Operation(
        "/-/ready",
        "getReady",
        "Whether the mapping is fresh",
        "200 while it is, else 503; either way one line says how it stands: for a readiness probe.",
    ),
)
