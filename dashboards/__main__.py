"""`python -m dashboards`: dashboards and rules made anew."""

import click

from dashboards.files import made
from dashboards.settings import PAGE, RUNBOOKS, Settings


@click.command()
@click.option("--runbooks", default=RUNBOOKS, show_default=True, help="Where the alerts' runbooks are read.")
@click.option(
    "--grafana", default="", help="Grafana's address, for the alerts' links; without it they are relative."
)
@click.option(
    "--page",
    default=PAGE,
    show_default=True,
    help="A node's status page, made of its {instance} or its {node}.",
)
def main(runbooks: str, grafana: str, page: str) -> None:
    """Write dashboards/grafana, dashboards/rules and the made parts of docs/dashboards.md."""
    try:
        files = made(Settings(runbooks, grafana, page))
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    for path, text in files.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
