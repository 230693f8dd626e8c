// The session's pictures and the jobs under way, newest first.

import { $, el } from "./dom.js";
import { cancel, ended, news, state } from "./server.js";
import * as stage from "./stage.js";

const thumbs = new Map(); // id -> element, so that pictures are not loaded again

export function init() {
  for (const name of ["pictures", "jobs"]) news.addEventListener(name, draw);
  stage.changes.addEventListener("picture", mark);
  news.addEventListener("models", () => { $("folder").textContent = `saved in ${state.models.folder}`; });
}

function draw() {
  const waiting = [...state.jobs.values()].filter((job) => !ended(job) && ["picture", "edit", "compare"].includes(job.kind));
  const failed = [...state.jobs.values()].filter((job) => job.state === "cancelled" && job.kind === "picture" && job.preview);
  const pictures = [...state.pictures.values()].filter((picture) => picture.kind !== "difference");
  const items = [
    ...waiting.map((job) => [job.created, pending(job)]),
    ...failed.map((job) => [job.created, remains(job)]),
    ...pictures.map((picture) => [picture.created, thumb(picture)]),
  ];
  items.sort((a, b) => b[0] - a[0]);
  $("thumbs").replaceChildren(...items.map((item) => item[1]));
  const busy = waiting.length;
  $("queue").textContent = busy ? `${busy} ${busy === 1 ? "job" : "jobs"}` : "";
  $("queue").hidden = !busy;
  mark();
}

function thumb(picture) {
  if (!thumbs.has(picture.id)) {
    const image = el("img", { src: picture.url, alt: stage.describe(picture), loading: "lazy" });
    const button = el("button", { type: "button", className: "thumb", title: stage.describe(picture) }, image);
    if (picture.kind !== "made") button.append(el("span", { className: "badge", textContent: picture.kind }));
    button.addEventListener("click", () => stage.show(picture));
    thumbs.set(picture.id, el("li", { dataset: { id: picture.id } }, button));
  }
  return thumbs.get(picture.id);
}

function pending(job) {
  const inside = job.preview ? el("img", { src: job.preview, alt: "" }) : el("span", { className: "dots", textContent: "···" });
  const label = job.state === "queued" ? `${job.position ?? 0} before` : `${job.step}/${job.total || "?"}`;
  const button = el("button", { type: "button", className: "thumb pending", title: `${job.title}: show` }, inside, el("span", { className: "badge", textContent: label }));
  button.addEventListener("click", () => stage.watch(job.id));
  const end = el("button", { type: "button", className: "end round quiet", ariaLabel: `cancel ${job.title}`, title: "Cancel", textContent: "×" });
  end.addEventListener("click", () => cancel(job.id));
  return el("li", {}, button, end);
}

// A cancelled job leaves its last preview.
function remains(job) {
  return el("li", {}, el("span", { className: "thumb ghost", title: `${job.title}: cancelled` }, el("img", { src: job.preview, alt: `cancelled: ${job.title}` }), el("span", { className: "badge", textContent: "cancelled" })));
}

function mark() {
  for (const [id, item] of thumbs) item.firstChild.setAttribute("aria-current", stage.current()?.id === id);
}
