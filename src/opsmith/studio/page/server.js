// The server as the page sees it: requests that start jobs, and one stream of what changes.
//
// A job belongs to the server. On connecting, the stream first sends everything as it is, so a page that was
// reloaded or offline needs no memory of its own.

import { $, right, toast, wrong } from "./dom.js";

export const state = { models: null, jobs: new Map(), pictures: new Map() };
export const news = new EventTarget(); // "models", "pictures", "jobs", and "job" with the job as detail

// FIELDS says at which element of the page a field of the request stands: what is wrong with it is said there.
export async function ask(path, body, fields = {}) {
  let answer;
  for (const id of Object.values(fields)) right(id);
  try {
    answer = await fetch(`api/${path}`, {
      method: "POST",
      headers: body instanceof Blob ? { "content-type": "application/octet-stream" } : { "content-type": "application/json" },
      body: body instanceof Blob ? body : JSON.stringify(body ?? {}),
    });
  } catch {
    toast("The server cannot be reached. Is it still running?");
    return null;
  }
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) {
    const message = found.error?.message ?? `The server answered ${answer.status}.`;
    const id = fields[found.error?.param] ?? fields.any;
    if (!id) toast(message);
    else { wrong(id, message); $(id).focus(); }
    return null;
  }
  return found;
}

// Starts a job; resolves with it once it has ended, null if it was refused. `mine` is called with every change.
export async function start(path, body, mine = () => {}, fields = {}) {
  const begun = await ask(path, body, fields);
  if (!begun) return null;
  take(begun);
  return follow(begun.id, mine);
}

export function follow(id, mine = () => {}) {
  return new Promise((resolve) => {
    const look = () => {
      const job = state.jobs.get(id);
      if (!job) return;
      mine(job);
      if (!ended(job)) return;
      news.removeEventListener("job", onJob);
      resolve(job);
    };
    const onJob = (event) => event.detail.id === id && look();
    news.addEventListener("job", onJob);
    look();
  });
}

export const ended = (job) => ["done", "failed", "cancelled"].includes(job.state);
export const cancel = (id) => ask(`jobs/${id}/cancel`);

export function keep(picture) {
  state.pictures.set(picture.id, picture);
  news.dispatchEvent(new Event("pictures"));
}

function take(job) {
  const known = state.jobs.get(job.id);
  if (known && ended(known) && !ended(job)) return; // the answer to the request came after the stream's news
  state.jobs.set(job.id, job);
  if (job.state === "done") {
    const shown = [...(job.result?.pictures ?? []), ...(job.result?.sides ?? []).map((side) => side.picture)];
    for (const picture of shown) state.pictures.set(picture.id, picture);
    if (shown.length) news.dispatchEvent(new Event("pictures"));
  }
  news.dispatchEvent(new CustomEvent("job", { detail: job }));
  news.dispatchEvent(new Event("jobs"));
}

export function connect() {
  const stream = new EventSource("api/events");
  let leaving = false;
  let lost = null; // the note that says so
  addEventListener("pagehide", () => { leaving = true; stream.close(); });
  addEventListener("pageshow", (event) => { if (event.persisted) connect(); });
  stream.addEventListener("models", (event) => {
    state.models = JSON.parse(event.data);
    news.dispatchEvent(new Event("models"));
  });
  stream.addEventListener("gallery", (event) => {
    state.pictures = new Map(JSON.parse(event.data).map((picture) => [picture.id, picture]));
    news.dispatchEvent(new Event("pictures"));
  });
  stream.addEventListener("jobs", (event) => {
    if (lost) { lost.remove(); toast("Connected again.", "good"); }
    lost = null;
    const jobs = JSON.parse(event.data);
    for (const id of state.jobs.keys()) if (!jobs.some((job) => job.id === id)) state.jobs.delete(id);
    for (const job of jobs) take(job);
    news.dispatchEvent(new Event("jobs"));
    news.dispatchEvent(new Event("ready"));
  });
  stream.addEventListener("gone", (event) => {
    state.jobs.delete(JSON.parse(event.data));
    news.dispatchEvent(new Event("jobs"));
  });
  stream.addEventListener("job", (event) => take(JSON.parse(event.data)));
  stream.addEventListener("error", () => {
    if (leaving || lost) return;
    lost = toast("The connection to the server was lost; trying again.");
    if (stream.readyState === EventSource.CLOSED) setTimeout(connect, 3000);
  });
}
