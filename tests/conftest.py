"""Shared by all tests. This folder is on sys.path, so any test can `import models` for the tiny exported models."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # tests never ask a hub
