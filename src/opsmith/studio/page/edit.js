// Select and edit: what changes is found by words or painted, how it changes is said in a sentence.

import { $, el, radios, toast } from "./dom.js";
import { ask, news, start, state } from "./server.js";
import * as selection from "./selection.js";
import * as stage from "./stage.js";
import { wish } from "./make.js";

const COLOURS = ["red", "orange", "gold", "green", "teal", "blue", "purple", "hotpink", "white", "black"];
let found = ""; // the words of the last search

export function init() {
  selection.init((share) => { $("share").textContent = share ? `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} % selected` : "no selection"; });
  $("select-form").addEventListener("submit", (event) => { event.preventDefault(); find(); });
  $("sure").addEventListener("change", find);
  radios(document.querySelector("#change .segmented"), (button) => {
    selection.choose(button.dataset.tool);
    $("reach-name").textContent = button.dataset.tool === "wand" ? "Colour reach" : "Size";
  });
  $("all").addEventListener("click", () => selection.fill(1));
  $("clear").addEventListener("click", () => { selection.fill(0); found = ""; });
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
    if (thing) apply(/^replace\b/i.test(thing) ? thing : `replace it with ${thing}`);
  });
  $("quick").addEventListener("click", (event) => { if (event.target.dataset.change) apply(event.target.dataset.change); });
  $("say-form").addEventListener("submit", (event) => { event.preventDefault(); if ($("say").value.trim()) apply($("say").value.trim()); });
  stage.changes.addEventListener("picture", () => { found = ""; $("sure-row").hidden = true; enable(); });
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
}

async function find() {
  const picture = stage.current();
  const words = $("words").value.trim();
  if (!picture || !words) { $("words").focus(); return; }
  const job = await start("select", { picture: picture.id, words, threshold: Number($("sure").value) / 100 });
  $("sure-row").hidden = false;
  if (job?.state === "failed") toast(job.error);
  if (job?.state !== "done" || stage.current() !== picture) return;
  await selection.load(job.result.mask);
  found = words;
}

async function apply(change) {
  const picture = stage.current();
  if (!picture) return;
  if (!selection.share()) {
    toast("Nothing is selected. Type what to edit, click it, or brush over it.");
    $("words").focus();
    return;
  }
  const { steps, guidance, seed, variant } = wish();
  const begun = await ask("edits", {
    picture: picture.id, mask: selection.toPng(), change, select: found, feather: Number($("feather").value),
    steps, guidance, seed, variant,
  });
  if (!begun) return;
  state.jobs.has(begun.id) || state.jobs.set(begun.id, begun);
  stage.watch(begun.id);
}
