// The selection: one byte per pixel of the picture, drawn as an overlay; wand, brush and eraser change it.

import { $ } from "./dom.js";

const canvas = $("overlay");
const view = { width: 0, height: 0, mask: new Uint8Array(0), pixels: null, cursor: null };
let tool = "wand";
let changed = () => {};

export function init(onChange) {
  changed = onChange;
  let last = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    canvas.setPointerCapture(event.pointerId);
    last = place(event);
    apply(last, last);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!last || tool === "wand") return;
    const now = place(event);
    apply(last, now);
    last = now;
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { last = null; });
  canvas.addEventListener("keydown", onKey);
  canvas.addEventListener("blur", () => { view.cursor = null; draw(); });
}

export function choose(name) {
  tool = name;
}

// A new picture: its pixels are read once, for the wand. KEEP: what was selected stays, if it has the same size.
export function reset(image, keep = false) {
  const same = view.width === image.naturalWidth && view.height === image.naturalHeight;
  view.width = image.naturalWidth;
  view.height = image.naturalHeight;
  if (!keep || !same) view.mask = new Uint8Array(view.width * view.height);
  view.cursor = null;
  const copy = new OffscreenCanvas(view.width, view.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(image, 0, 0);
  view.pixels = copy.getImageData(0, 0, view.width, view.height).data;
  canvas.width = view.width;
  canvas.height = view.height;
  update();
}

export const share = () => (view.mask.length ? view.mask.reduce((sum, v) => sum + v, 0) / view.mask.length : 0);

export function fill(value) {
  view.mask.fill(value);
  update();
}

export function invert() {
  view.mask = view.mask.map((v) => 1 - v);
  update();
}

export async function load(url) {
  const bitmap = new Image();
  bitmap.src = url;
  await bitmap.decode();
  if (bitmap.width !== view.width || bitmap.height !== view.height) return;
  const copy = new OffscreenCanvas(view.width, view.height).getContext("2d");
  copy.drawImage(bitmap, 0, 0);
  const data = copy.getImageData(0, 0, view.width, view.height).data;
  view.mask = view.mask.map((_, i) => (data[4 * i] > 127 ? 1 : 0));
  update();
}

// White where selected, as PNG in base64.
export function toPng() {
  const copy = document.createElement("canvas");
  copy.width = view.width;
  copy.height = view.height;
  const pen = copy.getContext("2d");
  const data = pen.createImageData(view.width, view.height);
  view.mask.forEach((v, i) => data.data.set([255 * v, 255 * v, 255 * v, 255], 4 * i));
  pen.putImageData(data, 0, 0);
  return copy.toDataURL("image/png");
}

function place(event) {
  const box = canvas.getBoundingClientRect();
  return [((event.clientX - box.left) / box.width) * view.width, ((event.clientY - box.top) / box.height) * view.height];
}

function apply(from, to) {
  const reach = Number($("reach").value);
  if (tool === "wand") wand(Math.floor(to[0]), Math.floor(to[1]), reach * 2.2);
  else stroke(from, to, (reach / 100) ** 1.5 * Math.max(view.width, view.height) * 0.3 + 0.8, tool === "brush" ? 1 : 0);
  update();
}

function stroke(from, to, radius, value) {
  const steps = Math.ceil(Math.hypot(to[0] - from[0], to[1] - from[1]) / Math.max(1, radius / 3)) || 1;
  for (let s = 0; s <= steps; s++) {
    const x = from[0] + ((to[0] - from[0]) * s) / steps;
    const y = from[1] + ((to[1] - from[1]) * s) / steps;
    for (let row = Math.max(0, Math.floor(y - radius)); row < Math.min(view.height, y + radius + 1); row++) {
      for (let column = Math.max(0, Math.floor(x - radius)); column < Math.min(view.width, x + radius + 1); column++) {
        if (Math.hypot(column + 0.5 - x, row + 0.5 - y) <= radius) view.mask[row * view.width + column] = value;
      }
    }
  }
}

// Everything that hangs together with the clicked pixel and has about its colour is added.
function wand(x, y, tolerance) {
  if (x < 0 || y < 0 || x >= view.width || y >= view.height) return;
  const { width, height, pixels, mask } = view;
  const first = y * width + x;
  const [r, g, b] = pixels.slice(4 * first, 4 * first + 3);
  const seen = new Uint8Array(width * height);
  const stack = [first];
  seen[first] = 1;
  while (stack.length) {
    const i = stack.pop();
    if (Math.hypot(pixels[4 * i] - r, pixels[4 * i + 1] - g, pixels[4 * i + 2] - b) > tolerance) continue;
    mask[i] = 1;
    const column = i % width;
    const next = [column > 0 && i - 1, column < width - 1 && i + 1, i >= width && i - width, i < width * (height - 1) && i + width];
    for (const n of next) if (n !== false && !seen[n]) { seen[n] = 1; stack.push(n); }
  }
}

function onKey(event) {
  const unit = Math.max(1, Math.round(view.width / 48)) * (event.shiftKey ? 4 : 1);
  const move = { ArrowLeft: [-unit, 0], ArrowRight: [unit, 0], ArrowUp: [0, -unit], ArrowDown: [0, unit] }[event.key];
  if (move) {
    view.cursor ??= [view.width / 2, view.height / 2];
    view.cursor = [
      Math.min(view.width - 1, Math.max(0, view.cursor[0] + move[0])),
      Math.min(view.height - 1, Math.max(0, view.cursor[1] + move[1])),
    ];
    draw();
  } else if (event.key === " " || event.key === "Enter") {
    view.cursor ??= [view.width / 2, view.height / 2];
    apply(view.cursor, view.cursor);
  } else return;
  event.preventDefault();
}

function update() {
  draw();
  changed(share());
}

// The selection keeps its own colours, so that an edit is seen as it is; the rest is dimmed, and the edge shows on any colour.
function draw() {
  const { width, height, mask } = view;
  const pen = canvas.getContext("2d");
  const data = pen.createImageData(width, height);
  if (mask.includes(1)) {
    for (let i = 0; i < mask.length; i++) {
      const column = i % width;
      const edge = mask[i] && ((column > 0 && !mask[i - 1]) || (column < width - 1 && !mask[i + 1]) || (i >= width && !mask[i - width]) || (i < width * (height - 1) && !mask[i + width]));
      data.data.set(edge ? [255, 236, 214, 235] : mask[i] ? [0, 0, 0, 0] : [12, 9, 6, 150], 4 * i);
    }
  }
  pen.putImageData(data, 0, 0);
  if (view.cursor) {
    pen.strokeStyle = "#fff";
    pen.lineWidth = Math.max(1, width / 160);
    pen.beginPath();
    pen.arc(view.cursor[0], view.cursor[1], Math.max(2, width / 32), 0, 7);
    pen.stroke();
  }
}
