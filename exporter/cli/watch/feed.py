"""Answers, whenever there may be a new one. A thread asks, so that whoever shows them is never held up."""

import http.client
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from exporter.cli.http import AskError, Deadline, Door, NoStreamError, trouble
from exporter.cli.select import Answer
from exporter.cli.watch.flag import AUTO
from exporter.cli.watch.stream import events

_EVENTS: Final = "/api/v1/events"
_SILENCE: Final = 40.0
"""Seconds without a word, of which there is one every 15, after which a stream is over."""
_PAUSES: Final = (1.0, 2.0, 5.0)
"""Seconds between attempts."""
_POLLS: Final = 20
"""Of asking again and again, before a stream is tried anew."""
INTERVALS: Final = {"exporter": 5.0, "kubelet": 2.0, "prometheus": 15.0}


@dataclass(frozen=True, slots=True)
class Fresh:
    """There is an answer."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class Lost:
    """It could not be asked; `why` in words. It is tried again."""

    why: str


@dataclass(frozen=True, slots=True)
class Word:
    """Something that should be known."""

    text: str


@dataclass(frozen=True, slots=True)
class Broken:
    """It cannot go on: what nobody foresaw."""

    error: BaseException


News = Fresh | Lost | Word | Broken


class Feed:
    """Asks `ask` whenever `door`'s exporter says that something changed, or else every `interval` seconds."""

    def __init__(
        self, ask: Callable[[], Answer], *, kind: str, interval: float, timeout: float, door: Door | None
    ) -> None:
        self.news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._ask = ask
        self._door = door
        self._timeout = timeout
        self._interval = INTERVALS[kind] if interval == AUTO else interval
        self._over = threading.Event()
        self._failures = 0
        self._generation = 0

    def start(self) -> None:
        """Begin; the thread does not hold up the process's end."""
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def stop(self) -> None:
        """Ask no more."""
        self._over.set()

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                if self._door is None:
                    self._poll(1)
                else:
                    self._follow(self._door)
        except BaseException as error:  # noqa: BLE001 -- told to the one who waits
            self.news.put(Broken(error))

    def _poll(self, times: int) -> None:
        for _ in range(times):
            told = self._tell()
            if self._over.wait(self._interval if told else self._pause()):
                return

    def _follow(self, door: Door) -> None:
        # An exporter that was started anew counts its generations anew.
        self._generation = 0
        try:
            for sent in events(door.stream(_EVENTS, Deadline(self._timeout), silence=_SILENCE)):
                if self._over.is_set():
                    return
                if sent.event == "generation" and self._is_news(sent.data):
                    self._tell()
            self._lose(f"{door.address}: it ended the stream of events")
        except NoStreamError as error:
            if error.reply.status in {http.client.NOT_FOUND, http.client.SERVICE_UNAVAILABLE}:
                self.news.put(
                    Word(f"asked every {self._interval:g} s, for it does not tell by itself: {error}")
                )
                self._poll(_POLLS)
                return
            self._lose(str(trouble(door.address, _EVENTS, error.reply)))
        except AskError as error:
            self._lose(str(error))
        self._over.wait(self._pause())

    def _is_news(self, generation: str) -> bool:
        """Whether that is not older than the last answer: several events come while one is asked for."""
        return not (generation.isascii() and generation.isdigit() and int(generation[:18]) < self._generation)

    def _tell(self) -> bool:
        try:
            answer = self._ask()
        except AskError as error:
            self._lose(str(error))
            return False
        self._failures = 0
        self._generation = max((told.document.generation for told in answer.told), default=0)
        self.news.put(Fresh(answer))
        return True

    def _lose(self, why: str) -> None:
        self._failures += 1
        self.news.put(Lost(why))

    def _pause(self) -> float:
        return _PAUSES[min(self._failures, len(_PAUSES)) - 1] if self._failures else 0.0
