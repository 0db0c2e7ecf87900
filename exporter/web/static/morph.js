// Changes a part of the page into another one, node by node, so that focus, selection, scroll position and open
// details stay. Children are matched by data-key, others by position. User input stays: values of fields, open
// details. So do additions of the page's modules: elements of class "own", attributes data-own-…, and times.

export function morph(from, to) {
  if (from.nodeType !== Node.ELEMENT_NODE) {
    if (from.data !== to.data) from.data = to.data;
    return;
  }
  const time = from.localName === "time" && from.getAttribute("datetime") === to.getAttribute("datetime");
  const zone = "zone" in from.dataset && "zone" in to.dataset;
  attributes(from, to);
  if (!time && !zone) children(from, to);
}

function kept(name) {
  return name === "open" || name.startsWith("data-own");
}

function attributes(from, to) {
  for (const { name, value } of to.attributes) {
    if (!kept(name) && from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
  for (const { name } of [...from.attributes]) {
    if (!kept(name) && !to.hasAttribute(name)) from.removeAttribute(name);
  }
}

function keyOf(node) {
  return (node.nodeType === Node.ELEMENT_NODE && node.dataset.key) || "";
}

function children(from, to) {
  const wanted = new Set();
  for (const child of to.children) if (keyOf(child)) wanted.add(keyOf(child));
  const found = new Map();
  for (const child of [...from.children]) {
    const key = keyOf(child);
    if (!key) continue;
    if (wanted.has(key)) found.set(key, child);
    else child.remove();
  }
  let at = theirs(from.firstChild);
  for (const next of [...to.childNodes]) {
    const key = keyOf(next);
    let match = null;
    if (key) {
      match = found.get(key) || null;
      // Only white space is before it: drop that rather than move the element, which would lose focus.
      while (match && at && at !== match && at.nodeType !== Node.ELEMENT_NODE) at = drop(at);
    } else if (at && !keyOf(at) && at.nodeType === next.nodeType && at.nodeName === next.nodeName) {
      match = at;
    }
    if (!match) {
      from.insertBefore(document.importNode(next, true), at);
      continue;
    }
    if (match === at) at = theirs(at.nextSibling);
    else from.insertBefore(match, at);
    morph(match, next);
  }
  while (at) at = drop(at);
}

function theirs(node) {
  while (node && node.nodeType === Node.ELEMENT_NODE && node.classList.contains("own")) node = node.nextSibling;
  return node;
}

function drop(node) {
  const after = theirs(node.nextSibling);
  node.remove();
  return after;
}
