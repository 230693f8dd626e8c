// Idea and picture: three prompts from a word, and the wish that becomes a picture.

import { $, duration, el, right, say, sentence, toast, valid, wrong } from "./dom.js";
import { ask, keep, news, start, state } from "./server.js";
import * as chips from "./chips.js";
import * as stage from "./stage.js";

const NUMBERS = ["steps", "guidance", "width", "height", "number", "seed"];
const FIELDS = { prompt: "prompt", negative: "negative", steps: "steps", guidance: "guidance", width: "width", height: "height", seed: "seed", n: "number", any: "prompt" };
const MEMORY = "opsmith-wish"; // the prompt and settings outlive the page
let memory = null;

export function init() {
  memory = JSON.parse(localStorage.getItem(MEMORY) ?? "null");
  $("idea-form").addEventListener("submit", suggest);
  $("picture-form").addEventListener("submit", make);
  $("picture-form").addEventListener("input", () => { line(); remember(); });
  $("prompt").addEventListener("input", check);
  $("dice").addEventListener("click", () => { $("seed").value = ""; right("seed"); line(); remember(); });
  $("reuse").addEventListener("click", () => restore(stage.current().settings));
  $("settings").addEventListener("toggle", remember);
  news.addEventListener("models", models);
  chips.init(changed);
  drops();
}

// --- idea ---

async function suggest(event) {
  event.preventDefault();
  const keyword = $("keyword").value.trim() || $("keyword").placeholder;
  $("keyword").value = keyword;
  $("suggest").disabled = true;
  const cards = [0, 1, 2].map(() => el("button", { type: "button", className: "idea-card writing", disabled: true, ariaLabel: "being written" }));
  $("ideas").replaceChildren(...cards);
  const job = await start("ideas", { keyword, n: 3 }, (now) => {
    now.texts.forEach((text, i) => { if (cards[i]) cards[i].textContent = text.trim(); });
  }, { any: "keyword" });
  $("suggest").disabled = false;
  if (job?.state !== "done") {
    if (job) wrong("keyword", job.error || "The writer was stopped.");
    $("ideas").replaceChildren();
    return;
  }
  job.result.prompts.forEach((text, i) => {
    const card = cards[i];
    card.textContent = text;
    card.disabled = false;
    card.removeAttribute("aria-label");
    card.classList.remove("writing");
    card.addEventListener("click", () => {
      for (const other of cards) other.setAttribute("aria-pressed", other === card);
      $("prompt").value = text;
      changed();
      $("prompt").focus();
    });
  });
  for (const card of cards.slice(job.result.prompts.length)) card.remove();
}

// --- picture ---

export function wish() {
  const number = (id) => ($(id).value === "" ? null : Number($(id).value));
  return {
    prompt: $("prompt").value.trim(),
    negative: $("negative").value.trim(),
    steps: number("steps") ?? 25,
    guidance: number("guidance"),
    width: number("width"),
    height: number("height"),
    seed: number("seed"),
    n: number("number") ?? 1,
    variant: document.querySelector("input[name=variant]:checked")?.value ?? null,
  };
}

export async function make(event) {
  event?.preventDefault();
  const asked = wish();
  if (!asked.prompt) {
    wrong("prompt", "Say what the picture shows, or pick a suggestion.");
    $("prompt").focus();
    return;
  }
  if (!valid(NUMBERS)) return;
  const begun = await ask("pictures", asked, FIELDS);
  if (!begun) return;
  state.jobs.has(begun.id) || state.jobs.set(begun.id, begun);
  stage.reveal();
  stage.watch(begun.id);
}

export function restore(settings) {
  if (!settings?.prompt) return false;
  $("prompt").value = settings.prompt;
  $("negative").value = settings.negative_prompt ?? "";
  for (const name of ["steps", "guidance", "width", "height", "seed"]) if (settings[name] != null) $(name).value = settings[name];
  $("number").value = (settings.index ?? 0) + 1; // picture number i of a seed is the last of i + 1
  choose(settings.variants?.unet);
  $("settings").open = true;
  for (const id of NUMBERS) right(id);
  changed();
  return true;
}

function choose(variant) {
  const radio = [...document.querySelectorAll("input[name=variant]")].find((input) => input.value === variant);
  if (radio) radio.checked = true;
}

// The prompt was changed by the page.
function changed() {
  right("prompt");
  line();
  remember();
  check();
}

// Words that the model was never shown are told before the picture is made.
let asked = 0;
async function check() {
  const number = ++asked;
  await new Promise((resolve) => setTimeout(resolve, 250));
  if (number !== asked) return;
  const prompt = $("prompt").value.trim();
  const found = prompt ? await ask("words", { prompt }, { any: "prompt" }) : { remark: "" };
  if (number === asked && found) say("unknown", sentence(found.remark));
}

function line() {
  const { steps, guidance, width, height, seed, n } = wish();
  const parts = [`${steps} steps`, `guidance ${guidance ?? "?"}`, `${width}×${height}`, seed == null ? "new seed" : `seed ${seed}`];
  if (n > 1) parts.push(`${n} pictures`);
  $("settings-line").textContent = parts.join(" · ");
}

function remember() {
  if (!state.models) return;
  const fields = Object.fromEntries(["prompt", "negative", ...NUMBERS].map((id) => [id, $(id).value]));
  localStorage.setItem(MEMORY, JSON.stringify({ ...fields, variant: wish().variant, open: $("settings").open, pipeline: state.models.pipeline }));
}

// --- models ---

let pipeline = null; // the one that the settings are made for

function models() {
  const { native, guidance, largest, most } = state.models;
  Object.assign($("width"), { max: largest });
  Object.assign($("height"), { max: largest });
  $("number").max = most;
  cards();
  if (pipeline === state.models.pipeline) return;
  const first = pipeline === null;
  pipeline = state.models.pipeline;
  const kept = first && memory?.pipeline === pipeline ? memory : null;
  Object.assign($("width"), { value: native[0] });
  Object.assign($("height"), { value: native[1] });
  $("guidance").value = guidance;
  if (kept) {
    for (const id of [...NUMBERS, "negative"]) $(id).value = kept[id] ?? $(id).value;
    $("settings").open = Boolean(kept.open);
    choose(kept.variant);
  }
  if (first && memory?.prompt && !$("prompt").value) $("prompt").value = memory.prompt;
  line();
  check();
}

function cards() {
  const { variants, best } = state.models;
  const before = document.querySelector("input[name=variant]:checked");
  const inputs = [...document.querySelectorAll("input[name=variant]")];
  const known = new Set(inputs.map((input) => input.value));
  // A variant that has just been compiled is taken; otherwise the choice stays.
  const stays = before && variants.some((v) => v.name === before.value) && known.has(best);
  const chosen = stays ? before.value : best;
  const held = document.activeElement?.name === "variant";
  const slowest = Math.max(...variants.map((v) => (v.together ? v.seconds_per_step : 0)));
  const rows = variants.map((v) => {
    const input = el("input", { type: "radio", name: "variant", value: v.name, checked: v.name === chosen });
    const speed = v.seconds_per_step == null ? "not timed yet" : `${duration(v.seconds_per_step)} a step`;
    const ratio = v.together ? slowest / v.seconds_per_step : 0;
    const gain = v.busy ? "machine was busy" : ratio > 1.02 ? `${ratio.toFixed(2)}× faster` : "";
    return el("label", { className: "variant" }, input,
      el("span", {}, el("b", { textContent: v.kind }), el("small", { textContent: v.name })),
      el("span", { className: "speed" }, speed, ...(gain ? [el("b", { textContent: gain })] : [])));
  });
  $("variants").replaceChildren($("variants").querySelector("legend"), ...rows);
  if (held) document.querySelector("input[name=variant]:checked")?.focus();
}

// --- pictures from outside ---

export async function open(file) {
  const limit = state.models?.upload.bytes ?? 0;
  if (limit && file.size > limit) {
    wrong("file", `The file has ${(file.size / 1e6).toFixed(0)} MB; ${(limit / 1e6).toFixed(0)} MB are allowed.`);
    return;
  }
  const picture = await ask("uploads", new Blob([file]), { any: "file" });
  if (!picture) return;
  keep(picture);
  stage.pick(picture);
  if (picture.restored && restore(picture.settings)) toast("Prompt and settings were restored from the picture.", "good");
}

function drops() {
  let depth = 0;
  const files = (event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragenter", (event) => { if (files(event)) { depth++; $("drop").hidden = false; } });
  addEventListener("dragleave", (event) => { if (files(event) && --depth <= 0) { depth = 0; $("drop").hidden = true; } });
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    depth = 0;
    $("drop").hidden = true;
    if (event.dataTransfer.files.length) open(event.dataTransfer.files[0]);
  });
  addEventListener("paste", (event) => { if (event.clipboardData?.files.length) open(event.clipboardData.files[0]); });
  $("file").addEventListener("change", () => { if ($("file").files.length) open($("file").files[0]); $("file").value = ""; });
}
