"""Run the worker: `python worker.pyz STARTER REQUEST RESULT`."""

import sys

from worker.main import main  # type: ignore[import-not-found]

sys.exit(main(sys.argv[1:]))
