"""The page's style and its few lines of script. No font, picture or script comes from anywhere else."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #f6f5f1; --card: #ffffff; --ink: #1c2530; --soft: #5d6b7a; --line: #dfe3e8; --track: #eceff2;
  --good: #1b7f4d; --bad: #b3341f; --warn: #8a5a00; --accent: #a8430f;
  --c0: #8091a5; --c1: #d2622a; --c2: #2c7f96; --c3: #6b9a3f; --c4: #9a539b; --c5: #c2931f; --c6: #4c62b3;
  --c7: #b0486a; --c8: #5f7d74; --c9: #a4adb7;
}
:root[data-theme="dark"] { color-scheme: dark; }
:root[data-theme="light"] { color-scheme: light; }
DARK_RULES
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
main, header, footer { max-width: 1180px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 36px; display: flex; gap: 16px; align-items: flex-start; justify-content: space-between; }
h1 { font-size: 30px; line-height: 1.15; margin: 0 0 6px; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 0 0 4px; }
h3 { font-size: 15px; margin: 18px 0 6px; }
p { margin: 4px 0 12px; }
.soft, .note { color: var(--soft); }
.note { border-left: 3px solid var(--warn); padding-left: 10px; font-size: 14px; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 22px 24px; margin: 20px 0; }
button {
  font: inherit; font-size: 13px; color: var(--soft); background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; padding: 5px 11px; cursor: pointer; white-space: nowrap;
}
button:hover, button:focus-visible { color: var(--ink); border-color: var(--soft); }
nav { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 14px 0 0; font-size: 14px; }
a { color: var(--accent); text-decoration: none; }
a:hover { text-decoration: underline; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 14px; margin: 22px 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 14px 18px; }
.card b { display: block; font-size: 25px; line-height: 1.25; font-weight: 650; }
.card span { color: var(--soft); font-size: 13.5px; }
.bars { display: grid; grid-template-columns: minmax(90px, max-content) 1fr minmax(150px, max-content); gap: 10px 14px; align-items: center; }
.bars .name { text-align: right; overflow-wrap: anywhere; }
.track { position: relative; height: 26px; background: var(--track); border-radius: 5px; overflow: hidden; display: flex; }
.bar { height: 100%; }
.whisker { position: absolute; top: 50%; height: 2px; background: var(--ink); transform: translateY(-1px); }
.whisker::before, .whisker::after { content: ""; position: absolute; top: -5px; height: 12px; width: 2px; background: var(--ink); }
.whisker::before { left: 0; } .whisker::after { right: 0; }
.whisker.open::after { display: none; }
.middle { position: absolute; top: 0; bottom: 0; width: 1px; background: var(--soft); }
.dot { position: absolute; top: 50%; width: 11px; height: 11px; border-radius: 50%; transform: translate(-50%, -50%); }
.scale { display: flex; justify-content: space-between; color: var(--soft); font-size: 12.5px; margin-top: -6px; }
.value { font-variant-numeric: tabular-nums; font-size: 14px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 12px 0 0; font-size: 13.5px; }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 6px; vertical-align: -1px; }
.scroll { overflow-x: auto; margin: 12px -4px 0; padding: 0 4px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 10px 5px 0; text-align: left; border-bottom: 1px solid var(--line); vertical-align: top; white-space: nowrap; }
th { color: var(--soft); font-weight: 600; cursor: pointer; user-select: none; }
th.n, td.n { text-align: right; }
td.wrap { white-space: normal; overflow-wrap: anywhere; min-width: 160px; }
tr:last-child td { border-bottom: 0; }
.good { color: var(--good); } .bad { color: var(--bad); }
code, pre { font: 13px/1.45 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
pre { overflow-x: auto; background: var(--track); border-radius: 8px; padding: 10px 12px; margin: 6px 0; }
details { margin-top: 10px; } summary { cursor: pointer; color: var(--accent); }
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; } svg .strong { fill: var(--ink); }
svg .axis { stroke: var(--line); } svg .roof { stroke: var(--ink); fill: none; stroke-width: 1.6; }
svg { display: block; width: 100%; height: auto; } svg.narrow { display: none; }
footer { color: var(--soft); font-size: 13px; padding-top: 4px; padding-bottom: 40px; }
@media (max-width: 680px) {
  main, header, footer { padding-left: 14px; padding-right: 14px; }
  header { padding-top: 22px; } h1 { font-size: 24px; }
  section { padding: 16px 14px; border-radius: 10px; margin: 14px 0; }
  .bars { grid-template-columns: 1fr; gap: 3px; } .bars .name { text-align: left; font-weight: 600; margin-top: 8px; }
  .cards { grid-template-columns: 1fr 1fr; gap: 10px; } .card { padding: 10px 12px; } .card b { font-size: 20px; }
  svg.wide { display: none; } svg.narrow { display: block; }
}
@media print { button, nav { display: none; } section { break-inside: avoid; } }
"""

_DARK = """
  --paper: #12161b; --card: #1a2027; --ink: #e8ebee; --soft: #9aa7b4; --line: #2c353f; --track: #252d36;
  --good: #58c48b; --bad: #f0836c; --warn: #d9a441; --accent: #f08a4b;
  --c0: #8b9bae; --c1: #e27b44; --c2: #4aa5be; --c3: #86b957; --c4: #b976ba; --c5: #d8ac3f; --c6: #7b8fdd;
  --c7: #d36b8c; --c8: #83a79c; --c9: #66717d;
"""
STYLE = STYLE.replace(
    "DARK_RULES",
    f'@media (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{{_DARK}}} }}\n'
    f':root[data-theme="dark"] {{{_DARK}}}',
)

# Sort a table by a click on its head; switch between light and dark.
SCRIPT = """
document.querySelectorAll("table.sorted th").forEach((head) => head.addEventListener("click", () => {
  const body = head.closest("table").tBodies[0], column = head.cellIndex;
  const down = head.dataset.down !== "1";
  head.closest("tr").querySelectorAll("th").forEach((h) => delete h.dataset.down);
  head.dataset.down = down ? "1" : "0";
  const key = (row) => { const cell = row.cells[column]; return cell.dataset.v ?? cell.textContent; };
  const rows = [...body.rows].sort((a, b) => {
    const x = key(a), y = key(b), n = parseFloat(x) - parseFloat(y);
    return (Number.isNaN(n) ? String(x).localeCompare(String(y)) : n) * (down ? -1 : 1);
  });
  rows.forEach((row) => body.append(row));
}));
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
"""
