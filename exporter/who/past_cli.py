"""Who held what at a moment: `devicelens who --at` and `devicelens history --at`."""

import os
import sys

import click

from exporter.web.words import rfc3339
from exporter.who.common import CouldNot, Nothing, say
from exporter.who.door import AskError
from exporter.who.past import gaps, recall_moment
from exporter.who.past_show import print_moment
from exporter.who.select import Ambiguous, NothingMatches, Question, nothing
from exporter.who.show import as_json
from exporter.who.sources import Source
from exporter.who.table.terminal import look


def answer_from_the_past(question: Question, moment: float, source: Source, *, output: str) -> None:
    """Print who held what at unix time `moment`, by an exporter's history. Raises as commands end."""
    try:
        document = recall_moment(source.door(), question, at=moment, timeout=source.timeout)
    except Ambiguous as error:
        raise click.BadParameter(str(error), param_hint="RESOURCE") from error
    except NothingMatches as error:
        raise Nothing(str(error)) from error
    except AskError as error:
        raise CouldNot(str(error)) from error
    for sentence in gaps(document):
        say(sentence)
    when = f"at {rfc3339(moment)}"
    if not document.holdings and (question.any or not document.complete):
        known = nothing(question, document.node, "was held", when)
        unknown = f"it is not known who held what on {document.node} {when}"
        raise Nothing(known if document.complete else unknown)
    if output == "json":
        click.echo(as_json(document))
    elif document.holdings:
        left_out = print_moment(document, sys.stdout, look(sys.stdout, os.environ), wide=output == "wide")
        if left_out:
            say(left_out)
    else:
        say(f"nothing was held on {document.node} {when}")
