// Says something to a person who listens to the page, politely and once.

let queued = 0;

export function say(text) {
  const said = document.getElementById("said");
  if (!said) return;
  cancelAnimationFrame(queued);
  said.textContent = ""; // the same words twice are news twice
  queued = requestAnimationFrame(() => {
    said.textContent = text;
  });
}
