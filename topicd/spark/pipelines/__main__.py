"""`python -m topicd.spark.pipelines NAME …`, and what spark-submit is given: `topicctl pipeline run NAME …`."""

from __future__ import annotations

import sys

from topicd.cli.main import main

if __name__ == "__main__":
    main(["pipeline", "run", *sys.argv[1:]])
