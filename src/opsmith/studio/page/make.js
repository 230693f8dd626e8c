// Idea and picture: three prompts from a word, and the wish that becomes a picture.

import { $, duration, el, toast } from "./dom.js";
import { ask, keep, news, start, state } from "./server.js";
import * as stage from "./stage.js";

export function init() {
  $("idea-form").addEventListener("submit", suggest);
  $("picture-form").addEventListener("submit", make);
  $("dice").addEventListener("click", () => { $("seed").value = ""; line(); });
  $("reuse").addEventListener("click", () => restore(stage.current().settings));
  $("settings").addEventListener("input", line);
  news.addEventListener("models", models);
  let first = true;
  news.addEventListener("models", () => {
    if (!first) return;
    first = false;
    const { native, guidance, largest, most } = state.models;
    Object.assign($("width"), { value: native[0], max: largest });
    Object.assign($("height"), { value: native[1], max: largest });
    $("guidance").value = guidance;
    $("number").max = most;
    line();
  });
  drops();
}

// --- idea ---

async function suggest(event) {
  event.preventDefault();
  const keyword = $("keyword").value.trim() || $("keyword").placeholder;
  $("keyword").value = keyword;
  $("suggest").disabled = true;
  const cards = [0, 1, 2].map(() => el("button", { type: "button", className: "idea-card writing", disabled: true }));
  $("ideas").replaceChildren(...cards);
  const job = await start("ideas", { keyword, n: 3 }, (now) => {
    now.texts.forEach((text, i) => { if (cards[i]) cards[i].textContent = text.trim(); });
  });
  $("suggest").disabled = false;
  if (job?.state !== "done") {
    if (job) toast(job.error || "The writer was stopped.");
    $("ideas").replaceChildren();
    return;
  }
  job.result.prompts.forEach((text, i) => {
    const card = cards[i];
    card.textContent = text;
    card.disabled = false;
    card.classList.remove("writing");
    card.addEventListener("click", () => {
      for (const other of cards) other.setAttribute("aria-pressed", other === card);
      $("prompt").value = text;
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
    toast("Say what the picture shows, or pick a suggestion.");
    $("prompt").focus();
    return;
  }
  const begun = await ask("pictures", asked);
  if (!begun) return;
  state.jobs.has(begun.id) || state.jobs.set(begun.id, begun);
  if (matchMedia("(max-width: 760px)").matches) $("board").scrollIntoView({ behavior: "smooth", block: "start" });
  stage.watch(begun.id);
}

export function restore(settings) {
  if (!settings?.prompt) return false;
  $("prompt").value = settings.prompt;
  $("negative").value = settings.negative_prompt ?? "";
  for (const name of ["steps", "guidance", "width", "height", "seed"]) if (settings[name] != null) $(name).value = settings[name];
  $("number").value = (settings.index ?? 0) + 1; // picture number i of a seed is the last of i + 1
  const variant = settings.variants?.unet;
  const radio = [...document.querySelectorAll("input[name=variant]")].find((input) => input.value === variant);
  if (radio) radio.checked = true;
  $("settings").open = true;
  line();
  return true;
}

function line() {
  const { steps, guidance, width, height, seed, n } = wish();
  const parts = [`${steps} steps`, `guidance ${guidance ?? "?"}`, `${width}×${height}`, seed == null ? "new seed" : `seed ${seed}`];
  if (n > 1) parts.push(`${n} pictures`);
  $("settings-line").textContent = parts.join(" · ");
}

function models() {
  const { variants, best, models } = state.models;
  const before = document.querySelector("input[name=variant]:checked");
  const known = new Set([...document.querySelectorAll("input[name=variant]")].map((input) => input.value));
  // A variant that has just been compiled is taken; otherwise the choice stays.
  const chosen = before && (known.has(best) || !known.size) ? before.value : best;
  $("model-name").textContent = models.pictures;
  const slowest = Math.max(...variants.map((v) => v.seconds_per_step ?? 0));
  const cards = variants.map((v) => {
    const input = el("input", { type: "radio", name: "variant", value: v.name, checked: v.name === chosen });
    const speed = v.seconds_per_step == null ? "not measured yet" : `${duration(v.seconds_per_step)} a step`;
    const gain = v.seconds_per_step && slowest / v.seconds_per_step > 1.02 ? `${(slowest / v.seconds_per_step).toFixed(2)}× as fast` : "";
    return el("label", { className: "variant" }, input,
      el("span", {}, el("b", { textContent: v.compiled ? "compiled" : "original" }), el("small", { textContent: v.name })),
      el("span", { className: "speed" }, speed, ...(gain ? [el("b", { textContent: gain })] : [])));
  });
  $("variants").replaceChildren($("variants").querySelector("legend"), ...cards);
}

// --- pictures from outside ---

export async function open(file) {
  const limit = state.models?.upload.bytes ?? 0;
  if (limit && file.size > limit) {
    toast(`The file has ${(file.size / 2 ** 20).toFixed(0)} MB; ${(limit / 2 ** 20).toFixed(0)} MB are allowed.`);
    return;
  }
  const picture = await ask("uploads", new Blob([file]));
  if (!picture) return;
  keep(picture);
  stage.show(picture);
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
