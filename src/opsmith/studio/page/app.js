// The page: views, keys, theme, and the order in which its parts begin.

import { $ } from "./dom.js";
import { connect } from "./server.js";
import * as bench from "./bench.js";
import * as edit from "./edit.js";
import * as gallery from "./gallery.js";
import * as make from "./make.js";
import * as picker from "./picker.js";
import * as stage from "./stage.js";

function view(name, focus = false) {
  for (const other of ["make", "bench"]) {
    const chosen = other === name;
    $(other).hidden = !chosen;
    $(`tab-${other}`).setAttribute("aria-selected", chosen);
    $(`tab-${other}`).tabIndex = chosen ? 0 : -1;
    if (chosen && focus) $(`tab-${other}`).focus();
  }
  if (location.hash.slice(1) !== name) history.replaceState(null, "", name === "make" ? "./" : `#${name}`);
}

for (const name of ["make", "bench"]) $(`tab-${name}`).addEventListener("click", () => view(name));
document.querySelector(".tabs").addEventListener("keydown", (event) => {
  if (event.key === "ArrowLeft" || event.key === "ArrowRight") view($("make").hidden ? "make" : "bench", true);
});
addEventListener("hashchange", () => view(location.hash === "#bench" ? "bench" : "make"));

$("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("opsmith-theme", root.dataset.theme);
});

addEventListener("keydown", (event) => {
  const command = event.ctrlKey || event.metaKey;
  const writing = event.target.matches("input:not([type=range]):not([type=radio]), textarea, select");
  if ($("make").hidden || document.querySelector("dialog[open]")) return;
  if (command && event.key === "Enter") make.make();
  else if (event.key === "Escape") stage.stop();
  else if (command && event.key.toLowerCase() === "s" && stage.current()) $("save").click();
  else if (command && event.key.toLowerCase() === "z" && !writing) event.shiftKey ? stage.redo() : stage.undo();
  else return;
  event.preventDefault();
});

stage.init();
make.init();
picker.init();
edit.init();
gallery.init();
bench.init();
view(location.hash === "#bench" ? "bench" : "make");
connect();
