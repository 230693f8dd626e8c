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

export function toast(message, kind = "bad") {
  const close = el("button", { className: "quiet round", type: "button", ariaLabel: "Dismiss", textContent: "×" });
  const note = el("div", { className: `toast ${kind}` }, el("span", { textContent: message }), close);
  close.addEventListener("click", () => note.remove());
  $("toasts").append(note);
  while ($("toasts").children.length > 3) $("toasts").firstChild.remove();
  if (kind !== "bad") setTimeout(() => note.remove(), 5000);
}

export function duration(seconds) {
  if (seconds == null) return "";
  if (seconds < 0.9995) return `${(seconds * 1000).toPrecision(3)} ms`;
  return seconds < 90 ? `${seconds.toFixed(1)} s` : `${Math.round(seconds / 60)} min`;
}

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
