// Select and edit: what changes is found by words or painted, how it changes is said in a sentence.

import { $, el, radios, right, say, wrong } from "./dom.js";
import { ask, news, start, state } from "./server.js";
import * as selection from "./selection.js";
import * as stage from "./stage.js";
import { wish } from "./make.js";

const COLOURS = ["red", "orange", "gold", "green", "teal", "blue", "purple", "hotpink", "white", "black"];
let found = ""; // the words of the last search
let chosen = false; // the soft edge is the user's choice

export function init() {
  selection.init((share) => { if (share) right("words"); $("share").textContent = share ? `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} % selected` : "no selection"; });
  $("select-form").addEventListener("submit", (event) => { event.preventDefault(); find(); });
  $("sure").addEventListener("change", find);
  radios(document.querySelector("#change .segmented"), (button) => {
    selection.choose(button.dataset.tool);
    $("reach-name").textContent = button.dataset.tool === "wand" ? "Colour reach" : "Size";
  });
  $("all").addEventListener("click", () => selection.fill(1));
  $("clear").addEventListener("click", () => { selection.fill(0); forget(); });
  $("invert").addEventListener("click", selection.invert);
  const custom = el("input", { type: "color", value: "#e8590c", title: "Any colour", ariaLabel: "Any colour" });
  custom.addEventListener("change", () => apply(`make it ${custom.value}`));
  $("swatches").append(
    ...COLOURS.map((name) => {
      const button = el("button", { type: "button", className: "swatch", title: `make it ${name}`, ariaLabel: `make it ${name}` });
      button.style.setProperty("--swatch", name);
      button.addEventListener("click", () => apply(`make it ${name}`));
      return button;
    }),
    custom,
  );
  $("replace-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const thing = $("replace").value.trim();
    if (thing) apply(/^replace\b/i.test(thing) ? thing : `replace it with ${thing.replace(/^with\s+/i, "")}`, "replace");
    else wrong("replace", "Say what comes instead.");
  });
  $("quick").addEventListener("click", (event) => { if (event.target.dataset.change) apply(event.target.dataset.change); });
  $("say-form").addEventListener("submit", (event) => { event.preventDefault(); if ($("say").value.trim()) apply($("say").value.trim()); else wrong("say", "Say what to change."); });
  $("feather").addEventListener("change", () => { chosen = true; });
  stage.changes.addEventListener("picture", (event) => { if (!event.kept) forget(); soften(); enable(); });
  news.addEventListener("models", () => {
    $("say-list").replaceChildren(...state.models.changes.map((kind) => el("option", { value: kind.replace(/ \(.*/, "") })));
  });
  enable();
}

// Nothing can be selected before there is a picture.
function enable() {
  const none = !stage.current();
  for (const control of $("change").querySelectorAll("input, button")) control.disabled = none;
  $("change").classList.toggle("off", none);
  $("no-stage").hidden = !none;
}

function forget() {
  found = "";
  $("sure-row").hidden = true;
  say("doubt", "");
}

// Two pixels are a halo in a small picture.
function soften() {
  const picture = stage.current();
  if (picture && !chosen) $("feather").value = Math.min(picture.width, picture.height) < 256 ? 1 : 2;
}

async function find() {
  const picture = stage.current();
  const words = $("words").value.trim();
  if (!picture) return;
  if (!words) { wrong("words", "Name a thing in the picture."); $("words").focus(); return; }
  const job = await start("select", { picture: picture.id, words, threshold: Number($("sure").value) / 100 }, undefined, { any: "words" });
  $("sure-row").hidden = false;
  if (job?.state === "failed") wrong("words", job.error);
  if (job?.state !== "done" || stage.current() !== picture) return;
  await selection.load(job.result.mask);
  found = words;
  say("doubt", job.result.doubt ? `Look twice: ${job.result.doubt}.` : `${Math.round(100 * job.result.sure)} % sure.`);
}

// FIELD is where the change was said.
async function apply(change, field = "say") {
  const picture = stage.current();
  if (!picture) return;
  if (!selection.share()) {
    wrong("words", "Nothing is selected. Type what to edit, click it in the picture, or brush over it.");
    $("words").focus();
    return;
  }
  const { steps, guidance, seed, variant } = wish();
  const body = { picture: picture.id, mask: selection.toPng(), change, select: found, feather: Number($("feather").value), steps, guidance, seed, variant };
  const begun = await ask("edits", body, { mask: "words", steps: "steps", guidance: "guidance", seed: "seed", any: field });
  if (!begun) return;
  state.jobs.has(begun.id) || state.jobs.set(begun.id, begun);
  stage.watch(begun.id);
}
