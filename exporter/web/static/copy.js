// A button after each element with data-copy, which copies the attribute's value, or the element's whole text.

import { say } from "./say.js";

export function offerCopies(root) {
  for (const button of root.querySelectorAll("button.copy")) {
    if (!button.previousElementSibling || !("copy" in button.previousElementSibling.dataset)) button.remove();
  }
  for (const source of root.querySelectorAll("[data-copy]")) {
    const after = source.nextElementSibling;
    const button = after && after.classList.contains("copy") ? after : made(source);
    const name = "Copy " + shortened(textOf(source));
    if (button.getAttribute("aria-label") !== name) button.setAttribute("aria-label", name);
  }
}

function made(source) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy own";
  button.title = "Copy";
  source.after(button);
  return button;
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest && event.target.closest("button.copy");
  if (!button) return;
  const text = textOf(button.previousElementSibling);
  const done = await copied(text);
  say(done ? "Copied " + shortened(text) : "Could not copy " + shortened(text));
  if (!done) return;
  button.dataset.ownDone = "";
  setTimeout(() => delete button.dataset.ownDone, 1500);
});

function textOf(source) {
  return source.dataset.copy || source.title || source.textContent;
}

function shortened(text) {
  return text.length > 80 ? text.slice(0, 50) + "…" + text.slice(-25) : text;
}

// Pages without TLS have no clipboard API.
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copiedByCommand(text);
  }
}

function copiedByCommand(text) {
  const focused = document.activeElement;
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "hidden own";
  field.readOnly = true;
  document.body.append(field);
  field.select();
  let done = false;
  try {
    done = document.execCommand("copy");
  } finally {
    field.remove();
    if (focused) focused.focus({ preventScroll: true });
  }
  return done;
}
