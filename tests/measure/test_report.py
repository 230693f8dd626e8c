from __future__ import annotations

import json
import re
import shutil

import pytest
from small_models import mlp, save

import opsmith
from opsmith.cli import main
from opsmith.measure import peak
from opsmith.measure.report import page, write
from opsmith.measure.units import duration, faster, size

QUICK = {"rounds": 3, "processes": 1, "threads": 1, "seconds": 0.5, "iterations": 5, "shapes": {"batch": 32}}
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A report on a plain model and its rewritten form; (page, document)."""
    root = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPSMITH_CACHE", str(root / "cache"))
        limits = [{"threads": 1, "flops": 5e10, "read": 1e10, "triad": 9e9}]
        known = {"format": peak._FORMAT, "cpu": peak.machine.cpu_name(), "cores": peak.machine.cores(), "others": 0.0}
        peak.cache_file().parent.mkdir(parents=True)
        peak.cache_file().write_text(json.dumps({**known, "limits": limits}))
        save(mlp(128, 3), root / "net" / "plain")
        opsmith.optimize(root / "net" / "plain", root / "net" / "rewritten", timing=False)
        path = opsmith.report(root / "net", **QUICK)
    assert path == root / "net" / "report.html"
    return path, json.loads(path.with_suffix(".json").read_text())


def test_the_document_is_inside_the_page(made):
    path, data = made
    inside = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.S)
    assert json.loads(inside.group(1)) == data
    assert [v["label"] for v in data["variants"]] == ["plain", "rewritten"]
    assert data["variants"][1]["record"]["verb"] == "optimize"


def test_the_page_needs_no_network(made):
    text = re.sub(r"<script type=.*?</script>", "", made[0].read_text(), flags=re.S)
    assert not re.search(r"""(?:src|href)=["'](?!#)|url\(|@import|https?:""", text)


def test_names_from_a_model_cannot_become_markup(made):
    data = json.loads(json.dumps(made[1]).replace('"plain"', json.dumps(HOSTILE)).replace("matmul0", HOSTILE))
    assert HOSTILE not in page(data)


def test_figures_that_are_missing_leave_the_page_whole(made):
    data = json.loads(json.dumps(made[1]))
    data["machine"]["peak_flops"] = data["machine"]["bandwidth"] = None
    for entry in data["bench"]["entries"]:
        entry["flops"] = entry["gflops"] = entry["share_of_peak"] = None
    data["comparisons"] = []
    data["variants"][1]["record"] = {}
    text = page(data)
    assert "roofline" not in re.findall(r'id="(\w+)"', text) and 'id="changes"' not in text
    assert "not written by Opsmith" in text


def test_commands_in_notes_are_set_as_code_and_one_variant_alone_agrees_with_nobody(made):
    data = json.loads(json.dumps(made[1]))
    data["bench"]["notes"] = ["<b> unknown: run `opsmith bench --machine` once"]
    text = page(data)
    assert '<p class="note">&lt;b&gt; unknown: run <code>opsmith bench --machine</code> once</p>' in text
    assert "all variants agree" in text and "<summary>all " in text
    data["bench"]["entries"] = data["bench"]["entries"][:1]
    assert "all variants agree" not in page(data)


def test_single_variant_and_wrong_use(tmp_path, capsys, monkeypatch):
    folder = save(mlp(16, 1), tmp_path / "net" / "only")
    for arguments, complaint in (
        (["--out", "page.pdf"], "HTML file"),
        (["--out", str(tmp_path / "no" / "page.html")], "does not exist"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["report", str(folder), *arguments])
        assert ended.value.code == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1 and complaint in lines[0]
    with pytest.raises(SystemExit) as ended:
        main(["report", str(folder), "-o", str(tmp_path / "page.html"), "--input", "nowhere=1"])
    assert ended.value.code == 2 and "nowhere" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path / "missing")])
    assert ended.value.code == 2


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    with playwright.sync_playwright() as engine:
        found = engine.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split(" "))
        yield found
        found.close()


def open_page(browser, path, *, width=1280, scheme="light"):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    tab = context.new_page()
    problems: list[str] = []
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    tab.on("request", lambda request: problems.append(request.url) if not request.url.startswith("file:") else None)
    tab.goto(path.as_uri())
    return tab, problems


def cells(tab, table: str) -> list[list[str]]:
    return tab.eval_on_selector_all(
        f"#{table} tbody tr", "rows => rows.map(r => [...r.cells].map(c => c.textContent.trim()))"
    )


def test_the_browser_shows_the_figures_of_the_document(made, browser):
    path, data = made
    tab, problems = open_page(browser, path)
    rows = cells(tab, "speed-table")
    entries = data["bench"]["entries"]
    for row, entry in zip(rows, entries, strict=True):
        assert row[:4] == [entry["label"], *(duration(entry["run"][k]) for k in ("median", "p5", "p95"))]
        assert row[4] == ("1x" if entry is entries[0] else faster(entry["speedup"]["value"]))
        assert row[8] == f"{entry['gflops']:.3g}" and row[9] == f"{entry['share_of_peak']:.0%}"
    graph = {row[0]: row[1:] for row in cells(tab, "graph-table")}
    assert graph["MatMul"][0] == str(data["variants"][0]["ops"]["MatMul"]) == "3"
    assert graph["size on disk"] == [size(v["size"]) for v in data["variants"]]
    ops = cells(tab, "ops-3")
    assert [r[0] for r in ops[:-1]] == [o["op"] for o in data["profiles"][0]["ops"]]
    assert [r[2] for r in ops[:-1]] == [duration(o["us"] * 1e-6) for o in data["profiles"][0]["ops"]]
    errors = cells(tab, "errors-table")
    assert errors[1][3] == f"{data['bench']['entries'][1]['errors'][0]['max_abs']:.2e}"
    circles = tab.eval_on_selector_all("svg.wide circle", "c => c.length")
    drawn = [n for p in data["profiles"] for n in p["nodes"] if n["flops"] and n["bytes"] and n["us"]]
    assert circles == len(drawn) > 0
    widths = tab.eval_on_selector_all(
        "#speed .bars:first-of-type .bar", "b => b.map(x => x.getBoundingClientRect().width)"
    )
    medians = [e["run"]["median"] for e in data["bench"]["entries"]]
    assert widths[1] / widths[0] == pytest.approx(medians[1] / medians[0], rel=0.02)
    assert not problems


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_sticks_out_and_words_can_be_read(made, browser, width, scheme):
    """No sideways scrolling of the page, and text with a contrast of 4.5 or more in light and dark."""
    tab, problems = open_page(browser, made[0], width=width, scheme=scheme)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    contrast = """() => {
      const parse = (c) => c.match(/[\\d.]+/g).map(Number);
      const linear = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
      const light = (c) => { const [r, g, b] = parse(c).map(linear);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const ground = (e) => { while (e) { const c = getComputedStyle(e).backgroundColor;
        if (parse(c)[3] !== 0) return c; e = e.parentElement; } return "rgb(255, 255, 255)"; };
      return [...document.querySelectorAll("h1, h2, h3, p, td, th, span, a, summary, .value, button")]
        .filter((e) => e.textContent.trim() && e.getBoundingClientRect().width)
        .map((e) => { const a = light(getComputedStyle(e).color), b = light(ground(e));
          return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.outerHTML.slice(0, 90)]; })
        .sort((x, y) => x[0] - y[0])[0];
    }"""
    worst = tab.evaluate(contrast)
    assert worst[0] >= 4.5, worst
    assert not problems


def test_tables_sort_and_the_theme_switches(made, browser):
    tab, _ = open_page(browser, made[0])
    tab.click("#graph-table th:nth-child(2)")
    counts = [float(r[1].replace(",", "")) for r in cells(tab, "graph-table") if r[0] in ("MatMul", "Add", "Relu")]
    assert counts == sorted(counts, reverse=True)
    before = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    tab.click("#theme")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") != before


def test_writing_replaces_the_old_page_whole(made, tmp_path):
    (tmp_path / "report.html").write_text("old")
    write(made[1], tmp_path / "report.html")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.html", "report.json"]
    assert "old" not in (tmp_path / "report.html").read_text()[:10]


def test_tuned_kernels_are_in_the_page() -> None:
    from opsmith.measure.report.page import _tuned

    choice = {
        "kernel": "conv",
        "sizes": "batch=1 <b>",
        "calls": 3,
        "analytical": "conv2d",
        "chosen": "conv2d_winograd4 24x3",
        "us_before": 40.0,
        "us_after": 10.0,
    }
    tuned = {"search": 2, "threads": 2, "calls_changed": 3, "ms_before": 0.12, "ms_after": 0.03, "choices": [choice]}
    text = _tuned(tuned, "tuned-0")
    assert "conv2d_winograd4 24x3" in text and "batch=1 &lt;b&gt;" in text
    assert "3 calls changed" in text and "0.03 ms instead of 0.12" in text
