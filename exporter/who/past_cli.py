"""`devicelens who --at`: who held what at a moment."""

import sys
import time

import click

from exporter.web.words import rfc3339
from exporter.who.ask import AskError
from exporter.who.common import CouldNot, Nothing, exporter_at, say
from exporter.who.moments import time_of
from exporter.who.past import gaps, recall_moment
from exporter.who.past_show import print_moment
from exporter.who.select import Ambiguous, NothingMatches, Question, nothing
from exporter.who.show import as_json


def answer_from_the_past(question: Question, at: str, url: str, *, timeout: float, as_table: bool) -> None:
    """Print who held what at the time `at`. Raises what the command ends with."""
    now = time.time()
    moment = time_of(at, "--at", now)
    if moment is None:
        raise TypeError("--at is given")
    try:
        document = recall_moment(exporter_at(url), question, at=moment, timeout=timeout)
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
    if not as_table:
        click.echo(as_json(document))
    elif document.holdings:
        print_moment(document, sys.stdout)
    else:
        say(f"nothing was held on {document.node} {when}")
