"""The training scripts are not part of the package: they are imported from the repository's root."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent.parent))
