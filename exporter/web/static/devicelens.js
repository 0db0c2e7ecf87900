// Keeps a page live. The server renders; this module fetches the same address again when the server sends an
// event, and changes what differs in <main data-events>. The page works without it too.

import { address, fill, follow } from "./address.js";
import { offerCopies } from "./copy.js";
import { morph } from "./morph.js";
import { announce, before } from "./changes.js";
import { clockOf, clocks, now, offerZone, setNow, tick } from "./times.js";

const SPACING = 500; // ms between two fetches
const RETRY = 5000; // ms until a closed event stream is opened again
const SILENCE = 20000; // ms without an event after which a page whose mapping is too old is no longer live

const main = document.querySelector("main");
const link = document.getElementById("link");
const live = Boolean(main && main.dataset.events && link);

let source = null;
let retry = 0;
let fetching = false;
let again = false;
let lastFetch = 0;
let timer = 0;
let lostSince = 0;
let heard = 0;
let wanted = address();
let shown = wanted;
let fields = false;

// --- the event stream: open only while the page is visible, because browsers allow few connections to a host

function open() {
  clearTimeout(retry);
  if (source || document.hidden) return;
  heard = performance.now();
  source = new EventSource(main.dataset.events);
  source.addEventListener("generation", (event) => {
    heard = performance.now();
    if (event.lastEventId === main.dataset.tag) found();
    else refresh();
  });
  source.addEventListener("refreshed", (event) => {
    found();
    answered(event.data);
    // History may have changed, which does not change the generation.
    if ("past" in main.dataset) refresh();
  });
  source.onerror = () => {
    lost();
    if (source && source.readyState === EventSource.CLOSED) {
      close();
      retry = setTimeout(() => {
        open();
        refresh();
      }, RETRY);
    }
  };
}

function close() {
  clearTimeout(retry);
  if (source) source.close();
  source = null;
}

function lost() {
  if (lostSince) return;
  lostSince = now();
  link.textContent = "Not live since " + clockOf(lostSince) + ": the exporter does not answer.";
  document.documentElement.classList.add("lost");
  outdated();
}

// Replaces the claim that the mapping is fresh, which the style sheet hides.
function outdated() {
  const banner = main.querySelector(".banner.ok:not([data-own-outdated])");
  const taken = banner && banner.querySelector("time[data-taken]");
  if (!taken) return;
  const old = document.createElement("p");
  const age = taken.cloneNode(true);
  old.className = "own aged";
  delete age.dataset.taken;
  old.append("This mapping is ", age, " old: holders may have changed since.");
  banner.dataset.ownOutdated = "";
  banner.prepend(old);
}

function found() {
  heard = performance.now();
  if (!lostSince) return;
  lostSince = 0;
  link.textContent = "";
  document.documentElement.classList.remove("lost");
  for (const banner of main.querySelectorAll("[data-own-outdated]")) delete banner.dataset.ownOutdated;
  for (const old of main.querySelectorAll(".own.aged")) old.remove();
}

function answered(iso) {
  for (const time of main.querySelectorAll("time[data-taken]")) {
    time.dateTime = iso;
    time.title = iso;
  }
  tick(main);
  clocks(main);
}

// An exporter that hangs keeps its connections: nothing fails, and no event comes. A page of the past gets none.
function second() {
  tick(main);
  const taken = main.querySelector(".banner.ok time[data-taken]");
  if (!taken || now() - Date.parse(taken.dateTime) <= Number(main.dataset.stale) * 1000) return;
  if (!live) outdated();
  else if (performance.now() - heard > SILENCE) lost();
}

// --- the page

function refresh() {
  again = true;
  if (fetching || timer) return;
  timer = setTimeout(load, Math.max(0, lastFetch + SPACING - Date.now()));
}

async function load() {
  timer = 0;
  again = false;
  fetching = true;
  lastFetch = Date.now();
  const asked = wanted;
  const headers = { Accept: "text/html" };
  // An unchanged page is not sent again.
  if (asked === shown && main.dataset.tag) headers["If-None-Match"] = 'W/"' + main.dataset.tag + '"';
  try {
    const response = await fetch(asked, { headers, cache: "no-store" });
    if (response.status !== 304) {
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      if (!response.ok) throw new Error(String(response.status));
      // Another filter may have been typed meanwhile.
      if (asked === wanted) show(page, asked);
    }
    found();
  } catch {
    lost();
  } finally {
    fetching = false;
    if (again) refresh();
  }
}

function show(page, asked) {
  const next = page.querySelector("main[data-events]");
  if (!next || page.documentElement.dataset.build !== document.documentElement.dataset.build) {
    location.reload(); // another version of the exporter
    return;
  }
  const focused = document.activeElement;
  const old = asked === shown ? before(main) : null;
  morph(main, next);
  shown = asked;
  if (fields) fill(main.querySelector("form.filters"), next.querySelector("form.filters"));
  fields = false;
  if (document.title !== page.title) document.title = page.title;
  setNow(Number(main.dataset.now));
  dress();
  if (focused && focused !== document.activeElement) {
    const place = focused.isConnected ? focused : main.querySelector("input[type=search]") || main;
    place.focus({ preventScroll: true });
  }
  if (old) announce(main, old);
}

function dress() {
  tick(main);
  clocks(main);
  offerCopies(main);
}

function start() {
  if (main.dataset.now) setNow(Number(main.dataset.now));
  offerZone(document.querySelector("header.top"));
  dress();
  setInterval(() => document.hidden || second(), 1000);
  if (!live) return;
  follow(main, (there, filled) => {
    if (there === wanted && !filled) return;
    if (there.split("?")[0] !== location.pathname) return;
    fields = fields || filled;
    wanted = there;
    if (wanted !== shown) refresh();
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      close();
    } else {
      open();
      refresh();
    }
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => {
    if (!event.persisted) return;
    open();
    refresh();
  });
  open();
}

if (main) start();
