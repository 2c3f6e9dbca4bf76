"""`python -m aicf`: the command line."""

import sys

from aicf.cli.main import main

sys.exit(main())
