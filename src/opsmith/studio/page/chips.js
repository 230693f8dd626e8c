// What a model of a small world can draw, as chips that go into the prompt: "a red apple and a frog, on the grass".

import { $, el } from "./dom.js";
import { news, state } from "./server.js";

const OPEN = "opsmith-chips";

export function init(changed) {
  let shown = "";
  $("chips").open = localStorage.getItem(OPEN) !== "closed";
  $("chips").addEventListener("toggle", () => localStorage.setItem(OPEN, $("chips").open ? "open" : "closed"));
  news.addEventListener("models", () => {
    const draws = state.models.draws;
    if (shown === JSON.stringify(draws)) return;
    shown = JSON.stringify(draws);
    const groups = Object.entries(draws);
    $("chips").hidden = !groups.length;
    const rows = groups.map(([kind, words]) => el("div", { className: "chip-row", role: "group", ariaLabel: kind },
      ...words.map((word) => el("button", { type: "button", className: "chip", textContent: word, onclick: () => { put(kind, word, draws); changed(); } }))));
    $("chips").replaceChildren($("chips").querySelector("summary"), ...rows);
  });
}

const article = (word) => (/^[aeiou]/.test(word) ? "an" : "a");

// Where a word goes: things before the place, colours and sizes before the last thing, one place at the end.
function put(kind, word, draws) {
  const prompt = $("prompt").value.trim().replace(/,$/, "");
  const place = draws.places?.find((one) => prompt.endsWith(one)) ?? "";
  const scene = prompt.slice(0, prompt.length - place.length).trim().replace(/,$/, "");
  if (kind === "places") $("prompt").value = scene ? `${scene}, ${word}` : word;
  else {
    const next = kind === "things" ? `${scene ? `${scene} and ` : ""}${article(word)} ${word}` : described(scene, word, kind, draws);
    $("prompt").value = place ? `${next}, ${place}` : next;
  }
}

function described(scene, word, kind, draws) {
  const words = scene.split(/\s+/).filter(Boolean);
  let at = words.findLastIndex((one) => draws.things.includes(one));
  if (at < 0) return `${scene ? `${scene} ` : ""}${word}`;
  const colour = draws.colours.includes(words[at - 1]);
  if (kind === "colours" && colour) words[--at] = word;
  else words.splice(kind === "sizes" && colour ? --at : at, 0, word);
  while (at > 0 && !["a", "an"].includes(words[at - 1]) && [...draws.colours, ...draws.sizes].includes(words[at - 1])) at--;
  if (["a", "an"].includes(words[at - 1])) words[at - 1] = article(words[at]);
  return words.join(" ");
}
