"""Run ONNX's node suite through the compiler; --page writes docs/op-coverage.md.

python tests/conformance/run_suite.py --page docs/op-coverage.md     all tests, about ten minutes on two cores
python tests/conformance/run_suite.py --only 'test_reduce*'           some of them, nothing written
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import page  # noqa: E402
import suite  # noqa: E402
from node_tests import load_cases  # noqa: E402

BAD = ("wrong", "failed", "crashed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="tests whose name matches this pattern (commas between several)")
    parser.add_argument("--batch", type=int, default=64, help="models per compiler run")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--isa", default="native", help="the instruction set to build for: a name from geometry.py")
    parser.add_argument("--keep", type=Path, help="keep what is built in this folder")
    parser.add_argument("--json", type=Path, help="also write every outcome to this file")
    parser.add_argument("--page", type=Path, help="write the coverage page to this file")
    options = parser.parse_args()
    cases = load_cases()
    if options.only:
        patterns = options.only.split(",")
        cases = [c for c in cases if any(fnmatch.fnmatchcase(c.name, p) for p in patterns)]

    def progress(done: int, total: int) -> None:
        print(f"{done} of {total}", file=sys.stderr, flush=True)

    outcomes = suite.run_suite(cases, options.keep, options.batch, options.jobs, options.isa, progress)
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(o) for o in outcomes], indent=1))
    if options.page:
        options.page.write_text(page.write_page(outcomes), encoding="utf-8")
    bad = [o for o in outcomes if o.status in BAD]
    for o in bad:
        print(f"{o.status} {o.name}: {o.detail}")
    passed = [o for o in outcomes if o.stock]
    native = [o for o in passed if o.status == "native"]
    print(suite.count(outcomes))
    share = 100 * len(native) / max(1, len(passed))
    print(
        f"stock ORT passes {len(passed)} of {len(outcomes)}; natively compiled of these: {len(native)} ({share:.1f} %)"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
