"""A claimed device's page (DRA): who has it through which claim, and who had it. Pure."""

from dataclasses import dataclass
from typing import Final

from exporter.history.record import HoldingRow, bounded
from exporter.mapping.holdings import Holding
from exporter.mapping.model import ClaimDevice, ClaimHolder
from exporter.mapping.state import State
from exporter.views.documents import Moment
from exporter.views.links import claim_link, history_link
from exporter.views.query import TEXT_LIMIT
from exporter.views.wording import Text, counted, spelled, text
from exporter.web.pages import periods
from exporter.web.pages.past import Answer, Range, Section, by_pod, life_link, section
from exporter.web.pages.periods import Stamp
from exporter.web.pages.rows import row_key
from exporter.web.pages.summary import Fresh, fresh
from exporter.web.pages.timeline import Named

HOLDERS: Final = 200

ClaimName = tuple[str, str, str]
"""Driver, pool and device."""


@dataclass(frozen=True, slots=True)
class Through:
    """One holder, and the claim."""

    key: str
    share: str
    claim: Text
    namespace: Text
    pod: Text
    href: str
    container: Text
    uid: str
    since: Stamp | None
    exact: bool


@dataclass(frozen=True, slots=True)
class ClaimPage:
    """Everything that the template shows."""

    node: str
    title: str
    now: float
    tag: str
    path: str
    fresh: Fresh
    name: Text
    whole: str
    driver: Text
    pool: Text
    present: bool
    headline: str
    cdi: tuple[Text, ...]
    holders: tuple[Through, ...]
    more_holders: int
    past: Section


@dataclass(frozen=True, slots=True)
class NearClaim:
    """A claimed device that may have been meant."""

    name: Text
    href: str


def claim_page(moment: Moment, name: ClaimName, span: Range, answer: Answer, *, tag: str) -> ClaimPage | None:
    """The page of a claimed device with all its shares at `moment`, None where none was ever known."""
    now = moment.now
    claimed = tuple(c for c in moment.state.snapshot.claims if c.key[:3] == name or _cut(c) == name)
    found = answer.found
    rows = () if found is None else tuple(row for row in found.rows if _of(row, name))
    if not claimed and not rows:
        return None
    holders = [_through(one, through, moment.state, now) for one in claimed for through in one.holders]
    driver, pool, device = name
    return ClaimPage(
        node=spelled(moment.node),
        title=f"{text(device, limit=40).shown} · {text(moment.node).shown} · devicelens",
        now=now,
        tag=tag,
        path=claim_link(*name),
        fresh=fresh(moment),
        name=text(device, limit=200),
        whole=spelled(device),
        driver=text(driver),
        pool=text(pool),
        present=bool(claimed),
        headline=_headline(claimed, rows, now),
        cdi=tuple(text(cdi, limit=160) for one in claimed for cdi in one.cdi_devices[:HOLDERS])[:HOLDERS],
        holders=tuple(holders[:HOLDERS]),
        more_holders=max(0, len(holders) - HOLDERS),
        past=section(
            answer,
            span,
            now,
            group=_share,
            named=by_pod,
            more=history_link(device=spelled(device)[:TEXT_LIMIT]),
            rows=rows,
        ),
    )


def near(moment: Moment, name: ClaimName) -> tuple[NearClaim, ...]:
    """The claimed devices that are most like `name`: of the same device, pool or driver."""
    scored = [
        (-2 * (key.device == name[2]) - (key.pool == name[1]) - (key.driver == name[0]), key[:3])
        for key in (claimed.key for claimed in moment.state.snapshot.claims)
    ]
    best = dict.fromkeys(key for score, key in sorted(scored) if score < 0)
    return tuple(NearClaim(text("/".join(key), limit=160), claim_link(*key)) for key in list(best)[:5])


def _cut(claimed: ClaimDevice) -> ClaimName:
    driver, pool, device = map(bounded, claimed.key[:3])
    return driver, pool, device


def _of(row: HoldingRow, name: ClaimName) -> bool:
    driver, pool, device = map(bounded, name)
    return row.key[1:4] == (driver, pool, device)


def _headline(claimed: tuple[ClaimDevice, ...], rows: tuple[HoldingRow, ...], now: float) -> str:
    if claimed:
        pods = {through.holder[:2] for one in claimed for through in one.holders}
        claims = {(t.claim_namespace, t.claim) for one in claimed for t in one.holders}
        return f"Held by {counted(len(pods), 'pod')} through {counted(len(claims), 'claim')}."
    end = periods.ended(rows[0], now)
    until = "" if end is None else f"; the last that held it did so until {periods.in_words(end)}"
    return f"Nobody on this node holds it now{until}."


def _through(one: ClaimDevice, through: ClaimHolder, state: State, now: float) -> Through:
    holder, held = through.holder, one.held(through)
    since = state.since.get(Holding(held, holder))
    return Through(
        key=row_key("through", *held, *holder),
        share=spelled(one.key.share_id)[:200],
        claim=text(f"{through.claim_namespace}/{through.claim}"),
        namespace=text(holder.namespace),
        pod=text(holder.pod),
        href=life_link(holder.namespace, holder.pod, holder.pod_uid),
        container=text(holder.container),
        uid=spelled(holder.pod_uid),
        since=None if since is None else periods.stamp(since.at, now),
        exact=since is not None and since.exact,
    )


def _share(row: HoldingRow) -> Named:
    """Bars in a row for each share."""
    share = row.key.share_id
    return Named(row_key("share", share), f"share {text(share, limit=60).shown}" if share else "")
