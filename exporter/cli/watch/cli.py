"""`devicelens who --watch`: from a source to a terminal or a pipe, until it is interrupted."""

import os
import queue
import signal
import sys
import time
from typing import Final, Protocol

import click

from exporter.cli.common import CouldNot, say
from exporter.cli.http import AskError
from exporter.cli.select import Ambiguous, Answer, Question, narrow
from exporter.cli.show import free
from exporter.cli.sources import Source
from exporter.cli.table.terminal import look
from exporter.cli.watch.feed import Broken, Feed, Fresh, Lost, Word
from exporter.cli.watch.flag import AUTO
from exporter.cli.watch.lines import Lines
from exporter.cli.who import asked, present

_TICK: Final = 1.0


class View(Protocol):
    """What shows the news."""

    def answered(self, answer: Answer) -> None:
        """There is an answer."""
        ...

    def lost(self, why: str) -> None:
        """It could not be asked."""
        ...

    def said(self, text: str) -> None:
        """Something should be known."""
        ...

    def tick(self) -> None:
        """A second has passed."""
        ...

    def close(self) -> None:
        """It is over."""
        ...


def follow(source: Source, question: Question, *, interval: float, output: str) -> None:
    """Tell what is held and what changes, until SIGINT or SIGTERM. Raises CouldNot if it cannot be asked at
    all, and BadParameter.
    """
    try:
        first = narrow(present(source), question)
    except Ambiguous as error:
        raise click.BadParameter(str(error), param_hint="RESOURCE") from error
    feed = Feed(
        lambda: _asked(source),
        kind=source.kind,
        interval=interval,
        timeout=source.timeout,
        # Whoever names an interval wants to ask.
        door=source.door() if source.kind == "exporter" and interval == AUTO else None,
    )
    # The terminal is put in order on either.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    view = _view(question, output)
    try:
        view.answered(first)
        feed.start()
        while True:
            try:
                news = feed.news.get(timeout=_TICK)
            except queue.Empty:
                view.tick()
                continue
            match news:
                case Fresh(answer):
                    view.answered(narrow(answer, question))
                case Lost(why):
                    view.lost(why)
                case Broken(foreseen) if isinstance(foreseen, AskError):
                    raise CouldNot(str(foreseen))
                case Broken(unforeseen):
                    raise unforeseen
                case Word(text):
                    view.said(text)
    except KeyboardInterrupt:
        pass
    finally:
        feed.stop()
        view.close()


def _asked(source: Source) -> Answer:
    """What it answers. Raises AskError, also where a file that it takes has become another one."""
    try:
        return asked(source)
    except click.BadParameter as error:
        raise AskError(f"{error.param_hint}: {error.message}") from error


def _view(question: Question, output: str) -> View:
    shown, wide = look(sys.stdout, os.environ), output == "wide"
    if output == "json" or not shown.terminal or os.environ.get("TERM") == "dumb":
        json = output == "json"
        return Lines(sys.stdout, shown, pod=question.pod, json=json, clock=time.time, tell=say)
    from exporter.cli.watch.screen import Screen  # noqa: PLC0415 -- rich takes a while to import

    return Screen(
        sys.stdout,
        lambda: free(look(sys.stdout, os.environ), wide=wide),
        question,
        wide=wide,
        clock=time.time,
        colour=shown.colour,
    )
