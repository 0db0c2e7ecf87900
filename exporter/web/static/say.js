// Announces a text to screen readers, politely and once.

let queued = 0;

export function say(text) {
  const said = document.getElementById("said");
  if (!said) return;
  cancelAnimationFrame(queued);
  said.textContent = ""; // so that an equal text is announced again
  queued = requestAnimationFrame(() => {
    said.textContent = text;
  });
}
