// Keeps the status page live. The server renders; this fetches the same address again when the server
// says that there is something new, and changes in <main> what differs, so that focus, selection, scroll
// and opened details stay as they are. Ages count on by themselves. Without it the page works as well.

const SPACING = 500; // ms between two fetches: the first at once, those behind it share the next
const TYPING = 150; // ms of silence after which a filter that is being typed is applied
const RETRY = 5000; // ms until the event stream is opened again where the browser does not do it itself

const main = document.querySelector("main[data-events]");
const link = document.getElementById("link");
if (main) start();

function start() {
  let skew = serverNow() - Date.now(); // ms by which the server's clock is ahead of this one
  let source = null;
  let retry = 0;
  let fetching = false;
  let again = false;
  let lastFetch = 0;
  let timer = 0;
  let lostSince = 0;
  let shown = location.pathname + location.search;

  function serverNow() {
    return Number(main.dataset.now) * 1000;
  }

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
    lostSince = Date.now() + skew;
    link.textContent =
      "Not live since " + new Date(lostSince).toISOString().slice(11, 19) +
      " UTC: the exporter does not answer. What you see is what it said last.";
    document.documentElement.classList.add("lost");
  }

  function found() {
    if (!lostSince) return;
    lostSince = 0;
    link.textContent = "";
    document.documentElement.classList.remove("lost");
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
    const address = shown;
    try {
      const response = await fetch(address, { headers: { Accept: "text/html" }, cache: "no-store" });
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      if (!response.ok) throw new Error(String(response.status));
      // A filter was typed meanwhile: what came is not what is asked for any longer.
      if (address === shown) show(page);
      found();
    } catch {
      lost();
    } finally {
      fetching = false;
      if (again) refresh();
    }
  }

  function show(page) {
    const next = page.querySelector("main[data-events]");
    if (!next || page.documentElement.dataset.build !== document.documentElement.dataset.build) {
      location.reload(); // another version of the exporter
      return;
    }
    const focused = document.activeElement;
    morph(main, next);
    if (focused && focused !== document.activeElement && focused.isConnected) {
      focused.focus({ preventScroll: true });
    }
    if (document.title !== page.title) document.title = page.title;
    skew = serverNow() - Date.now();
    tick();
  }

  // --- times

  function answered(iso) {
    for (const time of main.querySelectorAll("time[data-taken]")) {
      time.dateTime = iso;
      if (!("lasting" in time.dataset)) setText(time, iso.slice(11, 19));
    }
    tick();
  }

  function tick() {
    const now = Date.now() + skew;
    for (const time of main.querySelectorAll("time[data-lasting]")) {
      setText(time, lasting((now - Date.parse(time.dateTime)) / 1000));
    }
  }

  // --- filters: applied while they are typed, and all of them in the address

  function filtered() {
    const wanted = new URLSearchParams();
    for (const [name, value] of new FormData(main.querySelector("form.filters"))) {
      if (value.trim()) wanted.append(name, value);
    }
    const query = wanted.toString();
    return query ? "/?" + query : "/";
  }

  function at(address, change) {
    if (address !== shown) history[change](null, "", address);
    shown = address;
    refresh();
  }

  let typing = 0;
  main.addEventListener("input", (event) => {
    if (!event.target.closest("form.filters")) return;
    clearTimeout(typing);
    typing = setTimeout(() => {
      at(filtered(), "replaceState");
    }, TYPING);
  });
  main.addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(typing);
    at(filtered(), "pushState");
  });
  addEventListener("popstate", () => {
    // Also comes when only the fragment changes, as the skip link does.
    if (location.pathname + location.search !== shown) location.reload();
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
    if (event.persisted) {
      open();
      refresh();
    }
  });

  setInterval(() => document.hidden || tick(), 1000);
  tick();
  open();
}

// The same rules as `lasting` in words.py.
function lasting(seconds) {
  const whole = Math.trunc(Math.max(0, seconds));
  if (whole < 60) return whole + " s";
  if (whole < 3600) return Math.trunc(whole / 60) + " min";
  if (whole < 86400) return two(Math.trunc(whole / 3600), "h", Math.trunc((whole % 3600) / 60), "min");
  return two(Math.trunc(whole / 86400), "d", Math.trunc((whole % 86400) / 3600), "h");
}

function two(large, largeUnit, small, smallUnit) {
  return large + " " + largeUnit + (small ? " " + small + " " + smallUnit : "");
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// --- morphing: `from` becomes like `to`, node by node. Children with data-key are found again by it, the
// others by their place. What a person changed stays: values of fields, opened details, ticking times.

function keyOf(node) {
  return (node.nodeType === Node.ELEMENT_NODE && node.dataset.key) || "";
}

function morph(from, to) {
  if (from.nodeType !== Node.ELEMENT_NODE) {
    if (from.data !== to.data) from.data = to.data;
    return;
  }
  const ticking = "lasting" in from.dataset && "lasting" in to.dataset;
  const still = ticking && from.getAttribute("datetime") === to.getAttribute("datetime");
  attributes(from, to);
  if (!still) children(from, to);
}

function attributes(from, to) {
  for (const { name, value } of to.attributes) {
    if (name === "open" || from.getAttribute(name) === value) continue;
    from.setAttribute(name, value);
  }
  for (const { name } of [...from.attributes]) {
    if (name !== "open" && !to.hasAttribute(name)) from.removeAttribute(name);
  }
}

function children(from, to) {
  const wanted = new Set();
  for (const child of to.children) if (keyOf(child)) wanted.add(keyOf(child));
  const kept = new Map();
  for (const child of [...from.children]) {
    const key = keyOf(child);
    if (!key) continue;
    if (wanted.has(key)) kept.set(key, child);
    else child.remove();
  }
  let at = from.firstChild;
  for (const next of [...to.childNodes]) {
    const key = keyOf(next);
    let match = null;
    if (key) {
      match = kept.get(key) || null;
      // Only white space is before it: drop that rather than move the element, which would lose focus.
      while (match && at && at !== match && at.nodeType !== Node.ELEMENT_NODE) at = drop(at);
    } else if (at && !keyOf(at) && at.nodeType === next.nodeType && at.nodeName === next.nodeName) {
      match = at;
    }
    if (!match) {
      from.insertBefore(document.importNode(next, true), at);
      continue;
    }
    if (match === at) at = at.nextSibling;
    else from.insertBefore(match, at);
    morph(match, next);
  }
  while (at) at = drop(at);
}

function drop(node) {
  const after = node.nextSibling;
  node.remove();
  return after;
}
