// The picture model: a list of what is here, and one more by folder or Hugging Face id, with its size and licence first.

import { $, el, megabytes, right, wrong } from "./dom.js";
import { ask, ended, follow, news, start, state } from "./server.js";

let offer = null;

export function init() {
  news.addEventListener("models", list);
  news.addEventListener("jobs", () => { const job = adding(); if (job && $("model-dialog").open) told(job); });
  $("model").addEventListener("change", async () => {
    const job = await start("models/use", { source: $("model").value }, undefined, { any: "model" });
    if (job?.state === "failed") wrong("model", job.error);
    if (job?.state !== "done") list();
  });
  $("add-model").addEventListener("click", () => { nothing(); $("model-dialog").showModal(); });
  $("close-model").addEventListener("click", () => $("model-dialog").close());
  $("source").addEventListener("input", nothing);
  $("look-form").addEventListener("submit", look);
  $("take-model").addEventListener("click", take);
}

const adding = () => [...state.jobs.values()].filter((job) => job.kind === "add" && !ended(job)).pop();

function list() {
  const { pipelines, pipeline, closed } = state.models;
  $("model").replaceChildren(...pipelines.map((one) => el("option", { value: one.id, title: one.id, textContent: `${one.title} (${megabytes(one.bytes)})` })));
  $("model").value = pipeline;
  $("add-model").disabled = Boolean(closed);
  $("add-model").title = closed;
}

function nothing() {
  offer = null;
  right("source");
  $("offer").replaceChildren();
  $("take-model").disabled = true;
}

async function look(event) {
  event.preventDefault();
  nothing();
  $("look").disabled = true;
  offer = await ask("models/look", { source: $("source").value }, { any: "source" });
  $("look").disabled = false;
  if (!offer) return;
  const size = offer.fetched ? `${megabytes(offer.bytes)} will be fetched` : megabytes(offer.bytes);
  const facts = [["Model", offer.title], ["Size", size], ["Licence", offer.licence]];
  if (offer.exported) facts.push(["Then", "it is exported to ONNX on this machine, which takes minutes and needs PyTorch"]);
  $("offer").replaceChildren(el("dl", { className: "facts" }, ...facts.flatMap(([name, value]) => [el("dt", { textContent: name }), el("dd", { textContent: value })])));
  $("take-model").textContent = offer.fetched ? "Fetch and add it" : "Add it";
  $("take-model").disabled = false;
  $("take-model").focus();
}

function told(job) {
  $("offer").replaceChildren(el("p", { className: "soft", textContent: job.stopping ? "stopping" : job.note || "starting" }));
}

async function take() {
  $("take-model").disabled = true;
  const begun = await ask("models/add", { source: offer.source }, { any: "source" });
  if (!begun) return;
  state.jobs.has(begun.id) || state.jobs.set(begun.id, begun);
  const job = await follow(begun.id, (now) => ended(now) || told(now));
  if (job.state !== "done") {
    nothing();
    if (job.error) wrong("source", job.error);
    return;
  }
  $("model-dialog").close();
  const used = await start("models/use", { source: job.result.pipeline }, undefined, { any: "model" });
  if (used?.state === "failed") wrong("model", used.error);
}
