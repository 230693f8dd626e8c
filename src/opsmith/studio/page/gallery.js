// The gallery: pictures and the jobs under way, newest first. Items are changed in place: a click or the focus is never lost.

import { $, el } from "./dom.js";
import { ask, cancel, ended, news, state } from "./server.js";
import * as stage from "./stage.js";

const items = new Map(); // key -> { node, update }

export function init() {
  for (const name of ["pictures", "jobs"]) news.addEventListener(name, draw);
  stage.changes.addEventListener("picture", mark);
  news.addEventListener("models", () => { $("folder").textContent = `saved in ${state.models.folder}`; });
  $("clear-cancelled").addEventListener("click", async () => {
    for (const job of cancelled()) await ask(`jobs/${job.id}/clear`);
    $("thumbs").querySelector("button")?.focus();
  });
  $("thumbs").addEventListener("keydown", (event) => {
    const picture = state.pictures.get(event.target.closest("li")?.dataset.id);
    if (event.key !== "Delete" || !picture) return;
    stage.pick(picture);
    stage.remove();
  });
}

const all = () => [...state.jobs.values()];
const waiting = () => all().filter((job) => !ended(job) && ["picture", "edit", "compare"].includes(job.kind));
const cancelled = () => all().filter((job) => job.state === "cancelled" && ["picture", "edit"].includes(job.kind));

function draw() {
  const pictures = [...state.pictures.values()].filter((picture) => picture.kind !== "difference");
  const wanted = [
    ...waiting().map((job) => [job.created, `job ${job.id}`, pending, job]),
    ...cancelled().filter((job) => job.preview).map((job) => [job.created, `left ${job.id}`, remains, job]),
    ...pictures.map((picture) => [picture.created, `picture ${picture.id}`, thumb, picture]),
  ].sort((a, b) => b[0] - a[0]);
  place(wanted);
  $("no-pictures").hidden = wanted.length > 0;
  const busy = waiting().length;
  $("queue").textContent = busy ? `${busy} ${busy === 1 ? "job" : "jobs"}` : "";
  $("queue").hidden = !busy;
  $("clear-cancelled").hidden = !cancelled().some((job) => job.preview);
  mark();
}

// Puts the items in order: those that stay where they are are not touched.
function place(wanted) {
  const list = $("thumbs");
  const keys = new Set(wanted.map((entry) => entry[1]));
  const held = document.activeElement?.closest?.("#thumbs > li");
  const where = held ? [...list.children].indexOf(held) : -1;
  for (const [key, item] of items) if (!keys.has(key)) { item.node.remove(); items.delete(key); }
  wanted.forEach(([, key, make, what], i) => {
    if (!items.has(key)) items.set(key, make(what));
    const item = items.get(key);
    item.update?.(what);
    if (list.children[i] !== item.node) list.insertBefore(item.node, list.children[i] ?? null);
  });
  if (held && !held.isConnected) (list.children[Math.min(where, list.children.length - 1)]?.querySelector("button") ?? $("prompt")).focus();
}

function thumb(picture) {
  const image = el("img", { src: picture.url, alt: stage.describe(picture), loading: "lazy" });
  const button = el("button", { type: "button", className: "thumb", title: stage.describe(picture) }, image);
  if (picture.kind !== "made") button.append(el("span", { className: "badge", textContent: picture.kind }));
  button.addEventListener("click", () => stage.pick(state.pictures.get(picture.id)));
  return { node: el("li", { dataset: { id: picture.id } }, button) };
}

function pending(job) {
  const image = el("img", { alt: "", hidden: true });
  const dots = el("span", { className: "dots", textContent: "···" });
  const badge = el("span", { className: "badge" });
  const button = el("button", { type: "button", className: "thumb pending", title: `${job.title}: show` }, image, dots, badge);
  button.addEventListener("click", () => stage.watch(job.id));
  const end = el("button", { type: "button", className: "end round", ariaLabel: `cancel ${job.title}`, title: "Cancel", textContent: "×" });
  end.addEventListener("click", () => cancel(job.id));
  const update = (now) => {
    badge.textContent = now.stopping ? "stopping" : now.state === "queued" ? `${now.position ?? 0} before` : `${now.step}/${now.total || "?"}`;
    if (now.preview && image.getAttribute("src") !== now.preview) image.src = now.preview;
    image.hidden = !now.preview;
    dots.hidden = Boolean(now.preview);
  };
  return { node: el("li", {}, button, end), update };
}

// A cancelled job leaves its last preview, until it is cleared.
function remains(job) {
  return { node: el("li", {}, el("span", { className: "thumb ghost", title: `${job.title}: cancelled` }, el("img", { src: job.preview, alt: `cancelled: ${job.title}` }), el("span", { className: "badge", textContent: "cancelled" }))) };
}

function mark() {
  for (const [key, item] of items) {
    if (!key.startsWith("picture ")) continue;
    item.node.firstChild.setAttribute("aria-current", stage.current()?.id === item.node.dataset.id);
  }
}
