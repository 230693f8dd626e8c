// Bench: measured speeds, the same seed with two variants side by side, and the report of each part.

import { $, about, duration, el, radios, toast, valid } from "./dom.js";
import { cancel, ended, follow, news, start, state } from "./server.js";
import { words } from "./stage.js";

let part = "unet";

export function init() {
  news.addEventListener("models", draw);
  news.addEventListener("jobs", forge);
  $("compare-form").addEventListener("submit", compare);
  $("measure").addEventListener("click", measure);
  $("time").addEventListener("click", again);
  radios($("parts"), (button) => { part = button.dataset.part; report(); });
  news.addEventListener("ready", () => {
    const last = [...state.jobs.values()].filter((job) => job.kind === "compare").pop();
    if (last && !ended(last)) watch(last.id);
    else if (last?.state === "done") sides(last.result);
  });
  new MutationObserver(theme).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
}

function draw() {
  const { variants, parts } = state.models;
  const slowest = Math.max(...variants.map((v) => v.seconds_per_step ?? 0), 1e-9);
  $("speeds").replaceChildren(...variants.flatMap((v) => {
    const bar = el("div", { className: v.compiled ? "bar hot" : "bar" });
    bar.style.width = `${(100 * (v.seconds_per_step ?? 0)) / slowest}%`;
    const value = v.seconds_per_step == null ? "not timed yet" : `${duration(v.seconds_per_step)} · ${(1 / v.seconds_per_step).toFixed(1)} steps/s`;
    return [
      el("span", { className: "name", textContent: `${v.kind} (${v.name})` }),
      el("div", { className: "track" }, bar),
      el("span", { className: "value", textContent: value }),
    ];
  }));
  for (const [id, index] of [["compare-a", 0], ["compare-b", variants.length - 1]]) {
    const before = $(id).value;
    $(id).replaceChildren(...variants.map((v) => el("option", { value: v.name, textContent: v.name })));
    $(id).value = variants.some((v) => v.name === before) && variants.length > 1 && before !== "" ? before : variants[index].name;
  }
  const one = variants.length < 2;
  $("compare-form").querySelector("button").disabled = one;
  $("compare-note").textContent = one ? "There is one variant: compile it for this machine, then both can be compared." : "The same prompt and seed with two variants, one after the other.";
  $("time").hidden = one;
  $("time").textContent = variants.every((v) => v.together) ? "Time again" : "Time them in turn";
  const timing = [...state.jobs.values()].some((job) => job.kind === "time" && !ended(job));
  if (!timing) $("time-note").textContent = !one && variants.some((v) => v.busy) ? "Other programs used the CPU meanwhile: the figures are rough." : "";
  if (variants.length > 1 && $("compare-a").value === $("compare-b").value) $("compare-b").value = variants.at(-1).name;
  if (!(part in parts)) part = Object.keys(parts)[0];
  $("parts").replaceChildren(...Object.keys(parts).map((name) => {
    const chosen = name === part;
    return el("button", { type: "button", role: "radio", ariaChecked: chosen, tabIndex: chosen ? 0 : -1, textContent: name.replaceAll("_", " "), dataset: { part: name } });
  }));
  forge();
  report();
}

async function again() {
  $("time").disabled = true;
  const job = await start("time", {}, (now) => { $("time-note").textContent = ended(now) ? "" : words(now); });
  $("time").disabled = false;
  if (job?.state === "failed") $("time-note").textContent = job.error;
  else draw();
}

// --- the offer to compile, or how far it is; made once and changed in place ---

const forges = ["forge", "bench-forge"].map((id) => {
  const begin = el("button", { type: "button", textContent: "Compile for this machine" });
  const precision = el("select", { ariaLabel: "Precision" });
  const note = el("small", { className: "soft" });
  const text = el("span", { role: "status" });
  const fill = el("div", {});
  const track = el("div", { className: "track", role: "progressbar", ariaLabel: "Compiling", ariaValueMin: 0, ariaValueMax: 100 }, fill);
  const end = el("button", { type: "button", textContent: "Stop" });
  const offer = el("div", { className: "forge-offer" }, begin, precision, note);
  const going = el("div", { className: "forge-going" }, text, track, end);
  begin.addEventListener("click", () => compile(precision.value));
  precision.addEventListener("change", forge);
  end.addEventListener("click", () => { const job = compiling(); if (job) cancel(job.id); });
  return { place: $(id), offer, going, begin, precision, note, text, fill, track };
});
for (const { place, offer, going } of forges) place.append(offer, going);

const compiling = () => [...state.jobs.values()].filter((job) => job.kind === "compile" && !ended(job)).pop();

async function compile(precision) {
  const job = await start("compile", { precision });
  if (job?.state === "failed") toast(job.error);
  for (const remark of job?.result?.remarks ?? []) toast(remark, "plain");
}

function forge() {
  if (!state.models) return;
  const job = compiling();
  const work = Object.entries(state.models.uncompiled).filter(([, parts]) => parts);
  for (const { place, offer, going, precision, note, text, fill, track } of forges) {
    place.hidden = !job && !work.length;
    offer.hidden = Boolean(job);
    going.hidden = !job;
    if (job) {
      const share = job.total ? (100 * job.step) / job.total : 0;
      fill.style.width = `${share}%`;
      track.ariaValueNow = Math.round(share);
      const left = job.seconds_left == null ? "" : ` · about ${about(job.seconds_left)} left`;
      text.textContent = job.stopping ? "stopping" : job.state === "queued" ? "waiting for the forge" : `${job.note}${left}`;
      continue;
    }
    const names = work.map(([name]) => name);
    if ([...precision.options].map((option) => option.value).join() !== names.join()) {
      precision.replaceChildren(...names.map((name) => el("option", { value: name, textContent: name })));
    }
    precision.hidden = names.length < 2;
    const seconds = state.models.uncompiled[precision.value]?.seconds;
    const time = seconds == null ? "" : `, about ${about(seconds)}`;
    const rounding = precision.value === "bf16" ? " Products in bf16: quicker where the CPU has it, a little less exact." : "";
    note.textContent = `Native code for your CPU. Once${time}, in the background.${rounding}`;
  }
}

// --- compare ---

async function compare(event) {
  event.preventDefault();
  if (!valid(["compare-seed"])) return;
  const body = {
    prompt: $("compare-prompt").value.trim(), seed: Number($("compare-seed").value || 0),
    steps: Number($("steps").value), guidance: Number($("guidance").value), width: Number($("width").value), height: Number($("height").value),
    variants: [$("compare-a").value, $("compare-b").value],
  };
  finish(await start("compare", body, progress, { any: "compare-prompt" }));
}

const watch = async (id) => finish(await follow(id, progress));
const progress = (job) => { if (!ended(job)) $("compare-result").replaceChildren(el("p", { className: "soft", textContent: words(job) })); };

function finish(job) {
  if (job?.state === "done") sides(job.result);
  else {
    $("compare-result").replaceChildren();
    if (job?.error) toast(job.error);
  }
}

function sides(result) {
  const figures = result.sides.map((side) =>
    figure(side.picture, side.variant, `${duration(side.seconds_total)} in all, ${duration(side.step_seconds)} a step`));
  const same = result.psnr == null ? "the pictures are identical" : `PSNR ${result.psnr} dB, largest difference ${result.largest} of 255`;
  figures.push(figure(result.difference, result.gain > 1 ? `difference, ${result.gain}× amplified` : "difference", same));
  $("compare-result").replaceChildren(...figures);
}

function figure(picture, title, line) {
  return el("figure", {}, el("img", { src: picture.url, alt: title }), el("figcaption", {}, el("b", { textContent: title }), el("span", { className: "soft", textContent: line })));
}

// --- report ---

async function measure() {
  $("measure").disabled = true;
  const job = await start("report", { part }, (now) => { $("measure-note").textContent = ended(now) ? "" : `${words(now)}; this takes half a minute or more`; });
  $("measure").disabled = false;
  if (job?.state === "failed") toast(job.error);
  report();
}

let loaded = "";

function report() {
  const when = state.models.parts[part];
  const frame = $("report");
  frame.hidden = !when;
  $("measure").textContent = when ? "Measure again" : "Measure";
  if (!when || loaded === `${part} ${when}`) return;
  loaded = `${part} ${when}`;
  frame.onload = () => {
    theme();
    const inside = frame.contentDocument;
    const grow = () => { frame.style.height = `${inside.documentElement.scrollHeight + 8}px`; };
    new ResizeObserver(grow).observe(inside.body);
    grow();
  };
  frame.src = `api/report/${part}?${when}`;
}

function theme() {
  const inside = $("report").contentDocument?.documentElement;
  const chosen = document.documentElement.dataset.theme;
  if (inside && chosen) inside.dataset.theme = chosen;
}
