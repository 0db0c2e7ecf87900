// What a live update changed: new findings are announced once, and changed rows are marked for a moment.

import { say } from "./say.js";

const MARKED = 6000; // ms
const ANNOUNCED = 3; // sentences per announcement

export function before(main) {
  return { wrong: wrong(main), marks: marks(main) };
}

export function announce(main, old) {
  const present = wrong(main);
  const fresh = [...present].filter(([key]) => !old.wrong.has(key)).map(([, sentence]) => sentence);
  if (fresh.length) {
    const rest = fresh.length - ANNOUNCED;
    say("Wrong now: " + fresh.slice(0, ANNOUNCED).join(" ") + (rest > 0 ? " And " + rest + " more." : ""));
  } else if (old.wrong.size && !present.size) {
    say("Nothing is wrong any longer.");
  }
  for (const row of main.querySelectorAll("tr[data-mark]")) {
    if (old.marks.size && old.marks.get(row.dataset.key) !== row.dataset.mark) mark(row);
  }
}

function wrong(main) {
  const found = new Map();
  for (const item of main.querySelectorAll(".findings li[data-key]")) {
    found.set(item.dataset.key, item.querySelector(".sentence").textContent);
  }
  return found;
}

function marks(main) {
  const found = new Map();
  for (const row of main.querySelectorAll("tr[data-mark]")) found.set(row.dataset.key, row.dataset.mark);
  return found;
}

function mark(row) {
  const rows = [row];
  for (let next = row.nextElementSibling; next && next.classList.contains("further"); next = next.nextElementSibling) {
    rows.push(next);
  }
  for (const one of rows) one.dataset.ownChanged = "";
  setTimeout(() => {
    for (const one of rows) delete one.dataset.ownChanged;
  }, MARKED);
}
