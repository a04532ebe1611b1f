"""``python -m blockx_worker --profile block …`` is ``blockx run --profile block …``."""

import sys

from blockx_worker.cli import main

if __name__ == "__main__":
    main(["run", *sys.argv[1:]], prog_name="python -m blockx_worker")
