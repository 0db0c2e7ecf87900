// Times: ages advance, and the server's UTC times are shown in the browser's zone on request. time[data-lasting] is
// the age of its datetime; time[data-at] is a clock time, with data-at="seconds" always with seconds; [data-zone]
// names the zone, [data-zone-name] in a sentence.

const KEY = "devicelens.zone";
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

let skew = 0; // ms by which the server's clock is ahead of this one
let local = remembered() === "local";

export function now() {
  return Date.now() + skew;
}

export function setNow(seconds) {
  skew = seconds * 1000 - Date.now();
}

export function tick(root = document) {
  const present = now();
  for (const time of root.querySelectorAll("time[data-lasting]")) {
    setText(time, lasting((present - Date.parse(time.dateTime)) / 1000));
  }
}

// Updates every clock: after the page or the zone changed.
export function clocks(root = document) {
  const present = new Date(now());
  for (const time of root.querySelectorAll("time[data-at]")) {
    setText(time, clock(new Date(time.dateTime), present, time.dataset.at === "seconds"));
  }
  for (const name of root.querySelectorAll("[data-zone]")) setText(name, local ? zoneName() : "UTC");
}

export function clockOf(at) {
  return clock(new Date(at), new Date(now()), false) + " " + (local ? zoneName() : "UTC");
}

// Adds a button for the zone.
export function offerZone(place) {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "";
  if (!place || /^(Etc\/)?(UTC|GMT|Zulu|Universal)?$/.test(zone)) {
    local = false;
    return;
  }
  const button = document.createElement("button");
  button.type = "button";
  button.className = "zone-switch own";
  button.addEventListener("click", () => {
    local = !local;
    remember(local ? "local" : "");
    show();
  });
  function show() {
    button.textContent = "Times in " + (local ? zoneName() : "UTC");
    button.title = local ? "Show times in UTC" : "Show times in " + zone.replaceAll("_", " ");
    button.setAttribute("aria-pressed", String(local));
    button.setAttribute("aria-label", "Times in this own zone, " + zone.replaceAll("_", " "));
    for (const name of document.querySelectorAll("[data-zone-name]")) {
      setText(name, local ? zoneName() + " (" + zone + ")" : "UTC");
    }
    clocks();
  }
  place.append(button);
  show();
}

// The same rules as `clock_time` in wording.py.
function clock(at, present, seconds) {
  const of = local ? "get" : "getUTC";
  const two = (part) => String(at[of + part]()).padStart(2, "0");
  const same = (part) => at[of + part]() === present[of + part]();
  const minutes = two("Hours") + ":" + two("Minutes");
  const exact = minutes + ":" + two("Seconds");
  if (same("FullYear") && same("Month") && same("Date")) return exact;
  const time = seconds ? exact : minutes;
  if (same("FullYear")) return at[of + "Date"]() + " " + MONTHS[at[of + "Month"]()] + " " + time;
  const month = String(at[of + "Month"]() + 1).padStart(2, "0");
  return at[of + "FullYear"]() + "-" + month + "-" + two("Date") + " " + time;
}

function zoneName() {
  const parts = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" }).formatToParts(new Date(now()));
  return parts.find((part) => part.type === "timeZoneName").value;
}

// The same rules as `lasting` in wording.py.
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

// Without storage (private windows, policies) the choice lasts as long as the page.
function remembered() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

function remember(value) {
  try {
    localStorage.setItem(KEY, value);
  } catch {
    // nothing to be done
  }
}
