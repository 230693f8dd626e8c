"""The `opsmith` command, and `python -m opsmith`. A signal that comes while modules are still imported ends it with one line, too."""

import os
import signal
import sys
import threading
from typing import Any


def main() -> Any:
    """Run the command line; interrupts are answered from the first moment."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _interrupted)
    from opsmith.cli import main as run

    return run()


def _interrupted(number: int, frame: object) -> None:
    print("opsmith: error: interrupted", file=sys.stderr, flush=True)
    os._exit(128 + number)  # nothing was begun that would need an end


if __name__ == "__main__":
    main()
