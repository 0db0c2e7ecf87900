// The address has the whole query, and can be sent to a colleague: filters apply while they are typed, and links
// to other rows of the same page (data-here) are followed without loading it again.

const TYPING = 150; // ms after the last key until a typed filter is applied

export function address() {
  return location.pathname + location.search;
}

// `go(address, fields)` is called for each new address; with `fields`, the form has to show its filters.
export function follow(main, go) {
  let typing = 0;

  function to(wanted, change, fields) {
    clearTimeout(typing);
    if (wanted !== address()) history[change](null, "", wanted);
    go(wanted, fields);
  }

  main.addEventListener("input", (event) => {
    const form = event.target.closest("form.filters");
    if (!form) return;
    clearTimeout(typing);
    typing = setTimeout(() => to(asked(form), "replaceState", false), TYPING);
  });
  main.addEventListener("submit", (event) => {
    if (!event.target.matches("form.filters")) return;
    event.preventDefault();
    to(asked(event.target), "pushState", false);
  });
  main.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-here]");
    if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    to(link.pathname + link.search, "pushState", true);
    if (link.rel === "next" || link.rel === "prev") main.querySelector(".devices").scrollIntoView();
  });
  addEventListener("popstate", () => go(address(), true)); // also comes when only the fragment changes
  addEventListener("keydown", (event) => {
    const search = main.querySelector("input[type=search]");
    if (event.key !== "/" || event.metaKey || event.ctrlKey || event.altKey || !search) return;
    if (event.target.closest && event.target.closest("input, select, textarea, [contenteditable]")) return;
    event.preventDefault();
    search.focus();
    search.select();
  });
}

// Copies the values of the form `next`.
export function fill(form, next) {
  if (!form || !next) return;
  for (const field of next.elements) {
    const ours = field.name && form.elements.namedItem(field.name);
    if (ours && ours.value !== field.value) ours.value = field.value;
  }
}

function asked(form) {
  const wanted = new URLSearchParams();
  for (const [name, value] of new FormData(form)) if (value.trim()) wanted.append(name, value);
  const query = wanted.toString();
  return query ? "/?" + query : "/";
}
