// Bench: measured speeds, the same seed with two variants side by side, and the report of each part.

import { $, duration, el, radios, toast } from "./dom.js";
import { cancel, ended, follow, news, start, state } from "./server.js";
import { words } from "./stage.js";

let part = "unet";

export function init() {
  news.addEventListener("models", draw);
  news.addEventListener("jobs", forge);
  $("compare-form").addEventListener("submit", compare);
  $("measure").addEventListener("click", measure);
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
    const value = v.seconds_per_step == null ? "not measured yet" : `${duration(v.seconds_per_step)} · ${(1 / v.seconds_per_step).toFixed(1)} steps/s`;
    return [
      el("span", { className: "name", textContent: `${v.compiled ? "compiled" : "original"} (${v.name})` }),
      el("div", { className: "track" }, bar),
      el("span", { className: "value", textContent: value }),
    ];
  }));
  for (const [id, index] of [["compare-a", 0], ["compare-b", variants.length - 1]]) {
    const before = $(id).value;
    $(id).replaceChildren(...variants.map((v) => el("option", { value: v.name, textContent: v.name })));
    $(id).value = variants.some((v) => v.name === before) && variants.length > 1 && before !== "" ? before : variants[index].name;
  }
  if (variants.length > 1 && $("compare-a").value === $("compare-b").value) $("compare-b").value = variants.at(-1).name;
  if (!(part in parts)) part = Object.keys(parts)[0];
  $("parts").replaceChildren(...Object.keys(parts).map((name) => {
    const chosen = name === part;
    return el("button", { type: "button", role: "radio", ariaChecked: chosen, tabIndex: chosen ? 0 : -1, textContent: name.replaceAll("_", " "), dataset: { part: name } });
  }));
  forge();
  report();
}

// The offer to compile, or how far it is.
function forge() {
  if (!state.models) return;
  const job = [...state.jobs.values()].filter((j) => j.kind === "compile").pop();
  const running = job && !ended(job);
  for (const place of [$("forge"), $("bench-forge")]) {
    place.hidden = !running && !state.models.uncompiled.length;
    if (place.hidden) continue;
    if (running) {
      const fill = el("div", {});
      fill.style.width = `${job.total ? (100 * job.step) / job.total : 0}%`;
      const end = el("button", { type: "button", className: "quiet", textContent: "Stop" });
      end.addEventListener("click", () => cancel(job.id));
      place.replaceChildren(el("span", { textContent: job.state === "queued" ? "waiting for the forge" : `${job.note} (${job.step} of ${job.total})` }), el("div", { className: "track" }, fill), end);
    } else {
      const begin = el("button", { type: "button", textContent: "Compile for this machine" });
      begin.addEventListener("click", async () => {
        begin.disabled = true;
        const ended = await start("compile");
        if (ended?.state === "failed") toast(ended.error);
        for (const remark of ended?.result?.remarks ?? []) toast(remark, "plain");
      });
      place.replaceChildren(begin, el("small", { className: "soft", textContent: "Native code for your CPU. Once, about a minute, in the background." }));
    }
  }
}

// --- compare ---

async function compare(event) {
  event.preventDefault();
  const body = {
    prompt: $("compare-prompt").value.trim(), seed: Number($("compare-seed").value || 0),
    steps: Number($("steps").value), guidance: Number($("guidance").value), width: Number($("width").value), height: Number($("height").value),
    variants: [$("compare-a").value, $("compare-b").value],
  };
  const ended = await start("compare", body, progress);
  finish(ended);
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
