"""Panels of the dashboards: numbers, graphs, timelines, bars, tables, and the columns they share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from grafana_foundation_sdk.builders import bargauge, common, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.builders.dashboard import DashboardLink, FieldColor, ThresholdsConfig
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    MatcherConfig,
    Panel,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMapping,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat, QueryEditorMode

from dashboards import links
from dashboards.links import Link
from dashboards.rulefile import promql

SOURCE: Final = DataSourceRef(type_val="prometheus", uid="$datasource")

GREEN, YELLOW, RED, BLUE, GREY = "green", "yellow", "red", "blue", "#808080"

GOOD_IS_ZERO: Final = ((None, GREEN), (1.0, RED))
"""Green at 0, red from 1."""
GOOD_IS_ONE: Final = ((None, RED), (1.0, GREEN))
NEUTRAL: Final = ((None, BLUE),)
AGE: Final = ((None, GREEN), (30.0, YELLOW), (60.0, RED))
"""Seconds since the kubelet's last good answer; the default of --stale-after is 60 s."""
USED: Final = ((None, GREEN), (0.9, YELLOW), (1.0, RED))
IDLE: Final = ((None, RED), (0.01, YELLOW), (0.2, GREEN))

Steps = Sequence[tuple[float | None, str]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Query:
    """A query and the name of its series or column."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. `texts` maps values to words and their colours; `width` is in pixels, 0 for automatic."""

    field: str
    unit: str = ""
    texts: Mapping[str, tuple[str, str]] | None = None
    link: Link | None = None
    width: int = 0
    decimals: int | None = None
    steps: Steps | None = None


def _targets(queries: Sequence[Query], *, instant: bool, as_table: bool = False) -> list[Builder[Any]]:
    made: list[Builder[Any]] = []
    for letter, query in zip("ABCDEFGH", queries, strict=False):
        target = (
            Dataquery()
            .expr(promql(query.expr))
            .ref_id(letter)
            .datasource(SOURCE)
            .editor_mode(QueryEditorMode.CODE)
            .legend_format(query.legend or "__auto")
            .format(PromQueryFormat.TABLE if as_table else PromQueryFormat.TIME_SERIES)
        )
        made.append(target.instant() if instant else target.range())
    return made


def _steps(steps: Steps) -> ThresholdsConfig:
    return (
        ThresholdsConfig()
        .mode(ThresholdsMode.ABSOLUTE)
        .steps([Threshold(value=value, color=color) for value, color in steps])
    )


def texts(words: Mapping[str, tuple[str, str]]) -> list[ValueMapping]:
    """Mappings from values to words and their colours."""
    options = {
        value: ValueMappingResult(text=text, color=color, index=index)
        for index, (value, (text, color)) in enumerate(words.items())
    }
    return [ValueMap(options=options)]


def _links(links: Sequence[Link]) -> list[Builder[Any]]:
    return [DashboardLink(link.title).url(link.url).target_blank(link.elsewhere) for link in links]


def number(
    title: str,
    description: str,
    expr: str,
    *,
    unit: str = "short",
    steps: Steps = NEUTRAL,
    words: Mapping[str, tuple[str, str]] | None = None,
    nothing: str = "no data",
    legend: str = "",
    links: Sequence[Link] = (),
    width: int = 4,
    decimals: int | None = None,
) -> Builder[Panel]:
    """One current number."""
    panel = (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .targets(_targets([Query(expr, legend)], instant=True))
        .unit(unit)
        .thresholds(_steps(steps))
        .color_scheme(FieldColor().mode(FieldColorModeId.THRESHOLDS))
        .color_mode(common_models.BigValueColorMode.VALUE)
        .graph_mode(common_models.BigValueGraphMode.NONE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .no_value(nothing)
        .span(width)
        .height(4)
    )
    if words is not None:
        panel = panel.mappings(texts(words))
    if decimals is not None:
        panel = panel.decimals(decimals)
    return panel.data_links(_links(links)) if links else panel


def graph(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    unit: str = "short",
    stacked: bool = False,
    nothing: str = "no data",
    links: Sequence[Link] = (),
    width: int = 12,
    height: int = 8,
    least: float | None = 0.0,
    most: float | None = None,
) -> Builder[Panel]:
    """Lines over time, with a legend of last and highest values."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .targets(_targets(queries, instant=False))
        .unit(unit)
        .no_value(nothing)
        .line_width(1)
        .fill_opacity(30 if stacked else 8)
        .show_points(common_models.VisibilityMode.NEVER)
        .tooltip(
            common.VizTooltipOptions()
            .mode(common_models.TooltipDisplayMode.MULTI)
            .sort(common_models.SortOrder.DESCENDING)
        )
        .legend(
            common.VizLegendOptions()
            .show_legend(True)  # noqa: FBT003 -- the library's signature
            .display_mode(common_models.LegendDisplayMode.TABLE)
            .placement(common_models.LegendPlacement.BOTTOM)
            .calcs(["lastNotNull", "max"])
        )
        .span(width)
        .height(height)
    )
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    if least is not None:
        panel = panel.min(least)
    if most is not None:
        panel = panel.max(most)
    return panel.data_links(_links(links)) if links else panel


def timeline(
    title: str,
    description: str,
    queries: Sequence[Query],
    words: Mapping[str, tuple[str, str]],
    *,
    nothing: str = "no data",
    links: Sequence[Link] = (),
    width: int = 24,
    height: int = 10,
) -> Builder[Panel]:
    """States over time: a row for each series, its values as words."""
    panel = (
        statetimeline.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .targets(_targets(queries, instant=False))
        .unit("short")
        .mappings(texts(words))
        .color_scheme(FieldColor().mode(FieldColorModeId.THRESHOLDS))
        .thresholds(_steps(NEUTRAL))
        .no_value(nothing)
        .show_value(common_models.VisibilityMode.AUTO)
        .merge_values(True)  # noqa: FBT003 -- the library's signature
        .row_height(0.85)
        .per_page(40)
        .legend(common.VizLegendOptions().show_legend(True).placement(common_models.LegendPlacement.BOTTOM))  # noqa: FBT003 -- as above
        .span(width)
        .height(height)
    )
    return panel.data_links(_links(links)) if links else panel


def bars(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    unit: str = "short",
    steps: Steps = NEUTRAL,
    nothing: str = "no data",
    links: Sequence[Link] = (),
    width: int = 12,
    height: int = 8,
    most: float | None = None,
) -> Builder[Panel]:
    """A bar for the current value of each series."""
    panel = (
        bargauge.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .targets(_targets(queries, instant=True))
        .unit(unit)
        .thresholds(_steps(steps))
        .no_value(nothing)
        .min(0)
        .orientation(common_models.VizOrientation.HORIZONTAL)
        .display_mode(common_models.BarGaugeDisplayMode.BASIC)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .span(width)
        .height(height)
    )
    if most is not None:
        panel = panel.max(most)
    return panel.data_links(_links(links)) if links else panel


_LABELS: Final = (
    *("Time", "__name__", "job", "instance", "cluster", "node", "resource", "device", "parent"),
    *("namespace", "pod", "container", "workload_kind", "workload", "health"),
)
"""Fields that a table hides unless they are among its columns."""


def rows(
    title: str,
    description: str,
    queries: Sequence[Query],
    columns: Sequence[Column],
    *,
    nothing: str = "nothing",
    unit: str = "short",
    width: int = 24,
    height: int = 10,
    sort_by: str = "",
) -> Builder[Panel]:
    """A table of current values: a row for each set of labels, a column for each query, named by its legend."""
    several = len(queries) > 1
    names = {
        (f"Value #{letter}" if several else "Value"): query.legend
        for letter, query in zip("ABCDEFGH", queries, strict=False)
    }
    shown = [column.field for column in columns]
    values = {name: legend for name, legend in names.items() if legend in shown}
    fields = {legend: name for name, legend in values.items()}
    hidden = [
        *(name for name in _LABELS if name not in shown),
        *(name for name in names if name not in values),
    ]
    organized = {
        "indexByName": {fields.get(field, field): index for index, field in enumerate(shown)},
        "excludeByName": dict.fromkeys(hidden, True),
        "renameByName": values,
        "includeByName": {},
    }
    panel = (
        table.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .targets(_targets(queries, instant=True, as_table=True))
        .unit(unit)
        .no_value(nothing)
        .with_transformation(DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(DataTransformerConfig(id_val="organize", options=organized))
        .filterable(True)  # noqa: FBT003 -- the library's signature
        .span(width)
        .height(height)
    )
    for column in columns:
        properties = _properties(column)
        if properties:
            panel = panel.with_override(MatcherConfig(id_val="byName", options=column.field), properties)
    if sort_by:
        panel = panel.sort_by([common.TableSortByFieldState().display_name(sort_by).desc(True)])  # noqa: FBT003 -- as above
    return panel


def _properties(column: Column) -> list[DynamicConfigValue]:
    found: dict[str, Any] = {}
    if column.unit:
        found["unit"] = column.unit
    if column.decimals is not None:
        found["decimals"] = column.decimals
    if column.texts is not None:
        found["mappings"] = texts(column.texts)
        found["custom.cellOptions"] = {"type": "color-text"}
    if column.steps is not None:
        found["thresholds"] = _steps(column.steps).build()
        found["custom.cellOptions"] = {"type": "color-text"}
    if column.link is not None:
        link = {"title": column.link.title, "url": column.link.url, "targetBlank": column.link.elsewhere}
        found["links"] = [link]
    if column.width:
        found["custom.width"] = column.width
    return [DynamicConfigValue(id_val=name, value=value) for name, value in found.items()]


HEALTH: Final = {"1": ("healthy", GREEN), "0": ("not healthy", RED)}
HELD: Final = {"1": ("held", GREEN), "0": ("held, not healthy", RED)}
YES: Final = {"1": ("yes", GREEN), "0": ("no", RED)}

LABELS: Final = "cluster, node, resource, device, namespace, pod, container"
"""The labels that identify a holding."""

HOLDER: Final = (Column("namespace", link=links.NAMESPACE), Column("pod"), Column("container"))
HOLDER_HERE: Final = (
    Column("namespace", link=links.NAMESPACE),
    Column("pod", link=links.POD_PAGE),
    Column("container"),
)
"""The same on dashboards that link to the node's status page."""
UNUSED: Final = (
    Column("scope", width=90),
    Column("busiest", unit="percentunit", decimals=1, steps=IDLE),
)

DIRECTIONS: Final = (("receive", "in"), ("transmit", "out"))
"""Directions of network traffic: in metric names, and in legends."""


def health_of_holders(by: str, selector: str) -> str:
    """The health of each held device, one series for each holder with the labels `by`.

    devicelens_device_healthy has the labels node, resource and device alone; the holders come from
    devicelens_device_owner_info, filtered by `selector`. `by` must include cluster, node, resource and device.
    """
    device = "cluster, node, resource, device"
    return (
        f"group by ({by}) (devicelens_device_owner_info{{{selector}}}) "
        f"* on ({device}) group_left () max by ({device}) (devicelens_device_healthy)"
    )


def busy(selector: str) -> Query:
    """The utilisation of each holding."""
    return Query(
        f"holding:devicelens_utilisation:ratio{{{selector}}}", "{{namespace}}/{{pod}} {{device}} ({{scope}})"
    )


def allocation_rates(selector: str) -> list[Query]:
    """Allocations and releases per second."""
    return [
        Query(
            f"sum by (resource) (rate(devicelens_{what}_total{{{selector}}}[$__rate_interval]))",
            f"{{{{resource}}}} {legend}",
        )
        for what, legend in (("allocations", "allocated"), ("releases", "released"))
    ]
