"""What an organisation may want otherwise."""

import pytest

from dashboards.generate import boards, every_alert, generated
from dashboards.links import Addresses


def test_other_addresses_are_in_every_link() -> None:
    settings = Addresses(
        "https://wiki.example/runbooks/", "https://grafana.example/", "https://{node}.pages.example"
    )
    files = {path.name: text for path, text in generated(settings).items()}
    for alert in every_alert():
        assert f"runbook_url: https://wiki.example/runbooks/{alert.name}.md\n" in files["alerts.yaml"]
    assert files["alerts.yaml"].count("dashboard_url: https://grafana.example/d/devicelens-") == len(
        every_alert()
    )
    for uid in ("devicelens-node", "devicelens-device"):
        (page,) = [v for v in boards(settings)[uid]["templating"]["list"] if v["name"] == "page"]
        assert '"page", "https://$1.pages.example", "node", "(.+)"' in page["query"]


@pytest.mark.parametrize(
    "page", ["http://fixed", "http://{pod}", "{node}{instance}", 'http://{node}"', "http://{node}$x"]
)
def test_a_page_that_cannot_be_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="found"):
        Addresses(page=page)
