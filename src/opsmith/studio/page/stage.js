// The stage: the picture in work, or the job that makes one, with preview, progress and time left.

import { $, duration, right, say, sentence, toast, wrong } from "./dom.js";
import { ask, cancel, ended, follow, news, state } from "./server.js";
import * as selection from "./selection.js";

// `loaded` is the picture whose pixels have arrived: only in that one can be selected.
const stage = { picture: null, loaded: null, job: null, redo: [] };
export const current = () => stage.picture;
export const changes = new EventTarget(); // "picture" when another one is shown

export function init() {
  $("cancel").addEventListener("click", stop);
  $("undo").addEventListener("click", undo);
  $("redo").addEventListener("click", redo);
  $("delete").addEventListener("click", remove);
  $("ask-delete").addEventListener("close", () => { if ($("ask-delete").returnValue === "yes") deleted(); });
  $("compare-before").addEventListener("click", () => slider($("slider").hidden));
  $("split").addEventListener("input", split);
  for (const name of ["pointerdown", "pointermove"]) $("frame").addEventListener(name, drag);
  addEventListener("resize", fit);
  news.addEventListener("pictures", () => { if (stage.picture && !state.pictures.has(stage.picture.id)) gone(); });
}

const ACTIONS = ["undo", "redo", "compare-before", "reuse", "delete", "save"]; // what can be done with the picture that is shown

// An edit, its undo and its redo keep the selection: they show the same thing.
const related = (a, b) => Boolean(a && b && (a.parent === b.id || b.parent === a.id || a.id === b.id));

export function show(picture, { keepRedo = false } = {}) {
  if (!picture) return;
  const keep = related(stage.picture, picture);
  stage.picture = picture;
  stage.loaded = null;
  if (!keepRedo) stage.redo = [];
  slider(false);
  right("file");
  say("remarks", "");
  $("empty").hidden = true;
  $("frame").hidden = false;
  const image = $("shown");
  image.classList.remove("preview");
  image.onload = () => {
    if (stage.picture !== picture) return;
    fit();
    selection.reset(image, keep);
    stage.loaded = picture;
    $("overlay").hidden = busyHere() || !$("slider").hidden;
  };
  image.src = picture.url;
  image.alt = describe(picture);
  $("caption").textContent = describe(picture);
  const parent = state.pictures.get(picture.parent);
  for (const id of ACTIONS) $(id).hidden = busyHere();
  $("undo").disabled = !parent;
  $("redo").disabled = !stage.redo.length;
  $("compare-before").disabled = !parent;
  $("reuse").disabled = !picture.settings.prompt;
  $("save").href = `${picture.url}?download=true`;
  $("save").setAttribute("download", picture.file);
  const event = new Event("picture");
  event.kept = keep;
  changes.dispatchEvent(event);
}

// A picture that the user asks for is shown although a job is under way, which goes on; its place in the gallery leads back to it.
export function pick(picture) {
  stage.job = null;
  $("progress").hidden = true;
  show(picture);
}

// What has begun is seen, wherever the button was that began it.
export function reveal() {
  const board = $("board").getBoundingClientRect();
  if (board.top < 0 || board.top > innerHeight / 2) $("board").scrollIntoView({ behavior: "smooth", block: "start" });
}

const busyHere = () => stage.job !== null;

// The stage follows a job until it ends; then its first picture is shown.
export async function watch(id) {
  stage.job = id;
  slider(false);
  right("file");
  say("remarks", "");
  $("overlay").hidden = true;
  $("fill").style.width = "0";
  $("progress").hidden = false;
  for (const action of ACTIONS) $(action).hidden = true;
  const job = await follow(id, draw);
  if (stage.job !== id) {
    if (job.state === "failed") toast(job.error);
    return job;
  }
  stage.job = null;
  const held = document.activeElement === $("cancel");
  $("progress").hidden = true;
  $("shown").classList.remove("preview");
  if (job.state === "done" && job.result?.pictures?.length) {
    show(state.pictures.get(job.result.pictures[0].id));
    say("remarks", (job.result.remarks ?? []).map(sentence).join(" "));
  } else {
    if (stage.picture) show(stage.picture, { keepRedo: true });
    else if (!job.preview) clear();
    if (job.state === "failed") wrong("file", job.error);
  }
  if (held) $("go").focus();
  return job;
}

function draw(job) {
  if (stage.job !== job.id || ended(job)) return;
  $("caption").textContent = job.title;
  const part = job.total ? job.step / job.total : 0;
  $("fill").style.width = `${100 * part}%`;
  $("fill").parentElement.setAttribute("aria-valuenow", Math.round(100 * part));
  $("fill").parentElement.classList.toggle("waiting", !job.total);
  $("progress-text").textContent = words(job);
  if (job.preview && $("shown").getAttribute("src") !== job.preview) {
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
  if (job.stopping) return "stopping";
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
  if (!parent || busyHere()) return;
  stage.redo.push(stage.picture);
  show(parent, { keepRedo: true });
}

export function redo() {
  const next = busyHere() ? null : stage.redo.pop();
  if (next) show(next, { keepRedo: true });
}

// --- deleting ---

export function remove() {
  if (!stage.picture) return;
  $("ask-delete").returnValue = "";
  $("ask-delete").showModal();
}

async function deleted() {
  const picture = stage.picture;
  if (!picture || !(await ask(`pictures/${picture.id}/delete`))) return;
  state.pictures.delete(picture.id);
  news.dispatchEvent(new Event("pictures"));
}

// The picture on the stage is no longer there: the next newest one takes its place.
function gone() {
  stage.redo = stage.redo.filter((picture) => state.pictures.has(picture.id));
  const next = newest();
  if (next) { show(next); $("delete").focus(); return; }
  stage.picture = stage.loaded = null;
  if (!busyHere()) clear();
  slider(false);
  changes.dispatchEvent(new Event("picture"));
  $("prompt").focus();
}

function clear() {
  for (const id of ACTIONS) $(id).hidden = true;
  $("caption").textContent = "";
  $("frame").hidden = true;
  $("empty").hidden = false;
}

const newest = () => [...state.pictures.values()].filter((picture) => picture.kind !== "difference").pop();

// --- before and after ---

function slider(open) {
  const parent = state.pictures.get(stage.picture?.parent);
  const on = Boolean(open && parent);
  $("slider").hidden = !on;
  $("before").hidden = !on;
  $("knob").hidden = !on;
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

// The line follows the pointer, wherever on the picture it is pressed.
function drag(event) {
  if ($("slider").hidden || !(event.buttons & 1)) return;
  if (event.type === "pointerdown") $("frame").setPointerCapture(event.pointerId);
  const box = $("frame").getBoundingClientRect();
  $("split").value = (100 * (event.clientX - box.left)) / box.width;
  split();
  event.preventDefault();
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
  show(newest());
  if (alive) watch(alive.id);
});
