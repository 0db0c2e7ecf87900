"""exporter.metrics.families: how history is, for Prometheus."""

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse

from exporter.history.archive import HistoryStatus
from exporter.metrics.families import HistoryFamilies
from runtime.exposition import EMPTY, Format, assemble


def _values(condition: HistoryStatus) -> dict[str, float]:
    text = assemble(EMPTY, HistoryFamilies(lambda: condition), Format.OPENMETRICS, compress=False).decode()
    found = list(parse(text))  # type: ignore[no-untyped-call] # prometheus_client leaves it so
    assert all(family.documentation.endswith("[ALPHA]") for family in found)
    return {sample.name: sample.value for family in found for sample in family.samples}


def test_every_part_of_the_condition_is_told() -> None:
    condition = HistoryStatus(True, 1, 2, 3, 4.5, 6, 7, 8)
    assert _values(condition) == {
        "devicelens_history_up": 1,
        "devicelens_history_pending_holdings": 1,
        "devicelens_history_holdings": 2,
        "devicelens_history_size_bytes": 3,
        "devicelens_history_earliest_timestamp_seconds": 4.5,
        "devicelens_history_errors_total": 6,
        "devicelens_history_dropped_holdings_total": 7,
        "devicelens_history_expired_holdings_total": 8,
    }


def test_a_history_without_any_look_has_no_beginning() -> None:
    values = _values(HistoryStatus())
    assert values["devicelens_history_up"] == 0
    assert "devicelens_history_earliest_timestamp_seconds" not in values
