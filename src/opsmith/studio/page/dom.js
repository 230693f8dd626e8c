// Small helpers. Text always goes in as text, never as HTML.

export const $ = (id) => document.getElementById(id);

export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "dataset") Object.assign(node.dataset, value);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

// What the server says is written for a terminal; on the page it is a sentence, as the page's own are.
export const sentence = (text) => (text ? `${text[0].toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}` : "");

export function toast(message, kind = "bad") {
  const close = el("button", { className: "quiet round", type: "button", ariaLabel: "Dismiss", textContent: "×" });
  const note = el("div", { className: `toast ${kind}` }, el("span", { textContent: sentence(message) }), close);
  close.addEventListener("click", () => note.remove());
  $("toasts").append(note);
  while ($("toasts").children.length > 3) $("toasts").firstChild.remove();
  setTimeout(() => note.remove(), kind === "bad" ? 12000 : 5000);
  return note;
}

// --- what is wrong stands at its field, and goes away with the next change of it ---

export function wrong(id, message) {
  const field = $(id);
  right(id);
  const note = el("p", { id: `${id}-problem`, className: "problem", role: "alert", textContent: sentence(message) });
  const row = field.closest("form.row");
  if (row) row.after(note);
  else (field.closest(".cell") ?? field.parentElement).append(note);
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-describedby", note.id);
  field.addEventListener("input", () => right(id), { once: true });
  const folded = field.closest("details");
  if (folded) folded.open = true;
}

export function right(id) {
  $(`${id}-problem`)?.remove();
  $(id).removeAttribute("aria-invalid");
  $(id).removeAttribute("aria-describedby");
}

// Whether all of these fields hold what they may; otherwise each says what is wrong, and the first has the focus.
export function valid(ids) {
  const bad = ids.filter((id) => !$(id).checkValidity());
  for (const id of ids) bad.includes(id) ? wrong(id, $(id).validationMessage) : right(id);
  if (bad.length) $(bad[0]).focus();
  return !bad.length;
}

// A line of text, hidden while there is nothing to say.
export function say(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text;
  $(id).hidden = !text;
}

export function duration(seconds) {
  if (seconds == null) return "";
  if (seconds < 0.9995) return `${(seconds * 1000).toPrecision(3)} ms`;
  return seconds < 90 ? `${seconds.toFixed(seconds < 10 ? 1 : 0)} s` : `${Math.round(seconds / 60)} min`;
}

// A guess is not said to the second: 8 s, 40 s, 2 min.
export function about(seconds) {
  if (seconds < 10) return `${Math.max(1, Math.round(seconds))} s`;
  return seconds < 55 ? `${10 * Math.round(seconds / 10)} s` : `${Math.max(1, Math.round(seconds / 60))} min`;
}

export const megabytes = (bytes) => (bytes < 1e9 ? `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB` : `${(bytes / 1e9).toFixed(1)} GB`);

// A group of buttons of which one is chosen: arrow keys move, as in native radio buttons.
export function radios(group, choose) {
  const pick = (button, focus) => {
    for (const other of group.querySelectorAll("[role=radio]")) {
      const chosen = other === button;
      other.setAttribute("aria-checked", chosen);
      other.tabIndex = chosen ? 0 : -1;
    }
    if (focus) button.focus();
    choose(button);
  };
  group.addEventListener("click", (event) => {
    const button = event.target.closest("[role=radio]");
    if (button) pick(button);
  });
  group.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const all = [...group.querySelectorAll("[role=radio]")];
    event.preventDefault();
    pick(all[(all.indexOf(document.activeElement) + step + all.length) % all.length], true);
  });
}
