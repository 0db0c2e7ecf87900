// Keeps a page live. The server renders; this fetches the same address again when the server says that there
// is something new, and changes in <main data-events> what differs. Without it the page works as well.

import { address, fill, follow } from "./asking.js";
import { offerCopies } from "./copy.js";
import { morph } from "./morph.js";
import { before, tell } from "./news.js";
import { clockOf, clocks, now, offerZone, setNow, tick } from "./times.js";

const SPACING = 500; // ms between two fetches: the first at once, those behind it share the next
const RETRY = 5000; // ms until the event stream is opened again where the browser does not do it itself

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
let wanted = address();
let shown = wanted;
let fields = false;

// --- the event stream: open only while somebody looks, for browsers allow few connections to a host

function open() {
  clearTimeout(retry);
  if (source || document.hidden) return;
  source = new EventSource(main.dataset.events);
  source.addEventListener("generation", (event) => {
    if (event.lastEventId === main.dataset.tag) found();
    else refresh();
  });
  source.addEventListener("refreshed", (event) => {
    found();
    answered(event.data);
    // What is shown of the past may have been written since, which no generation tells.
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
  link.textContent =
    "Not live since " + clockOf(lostSince) + ": the exporter does not answer. What you see is what it said last.";
  document.documentElement.classList.add("lost");
}

function found() {
  if (!lostSince) return;
  lostSince = 0;
  link.textContent = "";
  document.documentElement.classList.remove("lost");
}

function answered(iso) {
  for (const time of main.querySelectorAll("time[data-taken]")) time.dateTime = iso;
  tick(main);
  clocks(main);
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
  // What is shown already need not be sent again.
  if (asked === shown && main.dataset.tag) headers["If-None-Match"] = 'W/"' + main.dataset.tag + '"';
  try {
    const response = await fetch(asked, { headers, cache: "no-store" });
    if (response.status !== 304) {
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      if (!response.ok) throw new Error(String(response.status));
      // Another filter was typed meanwhile: what came is not what is asked for any longer.
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
  if (old) tell(main, old);
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
  setInterval(() => document.hidden || tick(main), 1000);
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
