// The stage: the picture in work, or the job that makes one, with preview, progress and time left.

import { $, duration, toast } from "./dom.js";
import { cancel, ended, follow, news, state } from "./server.js";
import * as selection from "./selection.js";

// `loaded` is the picture whose pixels have arrived: only in that one can be selected.
const stage = { picture: null, loaded: null, job: null, redo: [] };
export const current = () => stage.picture;
export const changes = new EventTarget(); // "picture" when another one is shown

export function init() {
  $("cancel").addEventListener("click", stop);
  $("undo").addEventListener("click", undo);
  $("redo").addEventListener("click", redo);
  $("compare-before").addEventListener("click", () => slider($("slider").hidden));
  $("split").addEventListener("input", split);
  addEventListener("resize", fit);
}

export function show(picture, { keepRedo = false } = {}) {
  if (!picture) return;
  stage.picture = picture;
  stage.loaded = null;
  if (!keepRedo) stage.redo = [];
  slider(false);
  $("empty").hidden = true;
  $("frame").hidden = false;
  $("tools").hidden = false;
  const image = $("shown");
  image.classList.remove("preview");
  image.onload = () => {
    if (stage.picture !== picture) return;
    fit();
    selection.reset(image);
    stage.loaded = picture;
    $("overlay").hidden = busyHere() || !$("slider").hidden;
  };
  image.src = picture.url;
  image.alt = describe(picture);
  $("caption").textContent = describe(picture);
  const parent = state.pictures.get(picture.parent);
  $("undo").disabled = !parent;
  $("redo").disabled = !stage.redo.length;
  $("compare-before").disabled = !parent;
  $("reuse").disabled = !picture.settings.prompt;
  $("save").href = `${picture.url}?download=true`;
  $("save").setAttribute("download", picture.file);
  changes.dispatchEvent(new Event("picture"));
}

const busyHere = () => stage.job !== null;

// The stage follows a job until it ends; then its first picture is shown.
export async function watch(id) {
  stage.job = id;
  slider(false);
  $("overlay").hidden = true;
  $("progress").hidden = false;
  const job = await follow(id, draw);
  if (stage.job !== id) return job;
  stage.job = null;
  $("progress").hidden = true;
  $("shown").classList.remove("preview");
  if (job.state === "done" && job.result?.pictures?.length) {
    show(state.pictures.get(job.result.pictures[0].id));
    for (const remark of job.result.remarks ?? []) toast(remark, "plain");
  } else {
    if (job.state === "failed") toast(job.error);
    if (stage.picture) show(stage.picture, { keepRedo: true });
    else if (!job.preview) { $("frame").hidden = true; $("empty").hidden = false; }
  }
  return job;
}

function draw(job) {
  if (stage.job !== job.id || ended(job)) return;
  const part = job.total ? job.step / job.total : 0;
  $("fill").style.width = `${100 * part}%`;
  $("fill").parentElement.setAttribute("aria-valuenow", Math.round(100 * part));
  $("fill").parentElement.classList.toggle("waiting", !job.total);
  $("progress-text").textContent = words(job);
  if (job.preview) {
    const image = $("shown");
    $("empty").hidden = true;
    $("frame").hidden = false;
    image.onload = fit;
    image.classList.add("preview");
    image.alt = `preview of ${job.title}`;
    image.src = job.preview;
  }
}

export function words(job) {
  if (job.state === "queued") return job.position ? `waiting: ${job.position} before this one` : "starting";
  if (job.step && job.total) {
    const left = job.seconds_left == null ? "" : ` · ${duration(Math.max(0.1, job.seconds_left))} left`;
    return `${job.note ? `${job.note}: ` : ""}step ${job.step} of ${job.total}${left}`;
  }
  return job.note || "starting";
}

export const stop = () => stage.job && cancel(stage.job);

export function undo() {
  const parent = state.pictures.get(stage.picture?.parent);
  if (!parent) return;
  stage.redo.push(stage.picture);
  show(parent, { keepRedo: true });
}

export function redo() {
  const next = stage.redo.pop();
  if (next) show(next, { keepRedo: true });
}

// --- before and after ---

function slider(open) {
  const parent = state.pictures.get(stage.picture?.parent);
  const on = Boolean(open && parent);
  $("slider").hidden = !on;
  $("before").hidden = !on;
  $("overlay").hidden = on || busyHere() || !stage.picture || stage.loaded !== stage.picture;
  $("compare-before").setAttribute("aria-pressed", on);
  if (on) {
    $("before").src = parent.url;
    $("before").alt = "before the edit";
    split();
    $("split").focus();
  }
}

function split() {
  $("before").style.clipPath = `inset(0 ${100 - $("split").value}% 0 0)`;
  $("frame").style.setProperty("--split", `${$("split").value}%`);
}

// As large as the board allows, in the picture's own shape.
function fit() {
  const image = $("shown");
  if (!image.naturalWidth) return;
  const board = $("board").getBoundingClientRect();
  const room = [board.width - 48, Math.max(260, Math.min(innerHeight * 0.62, board.width) - 48)];
  const scale = Math.min(room[0] / image.naturalWidth, room[1] / image.naturalHeight);
  $("frame").style.width = `${Math.floor(image.naturalWidth * scale)}px`;
  $("frame").style.height = `${Math.floor(image.naturalHeight * scale)}px`;
}

export function describe(picture) {
  const settings = picture.settings;
  const edits = (settings.edits ?? []).map((edit) => edit.change).join(", ");
  const name = settings.prompt ?? (picture.kind === "difference" ? "difference" : "a picture from outside");
  return edits ? `${name} — ${edits}` : name;
}

news.addEventListener("ready", () => {
  if (stage.job || stage.picture) return;
  const jobs = [...state.jobs.values()].filter((job) => ["picture", "edit"].includes(job.kind));
  const alive = jobs.filter((job) => !ended(job)).pop();
  const pictures = [...state.pictures.values()].filter((picture) => picture.kind !== "difference");
  if (pictures.length) show(pictures.pop());
  if (alive) watch(alive.id);
});
