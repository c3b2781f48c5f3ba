"""Numbers per window of time, topic and, if wanted, tag and node: of all there is (`batch`), or step by step of what is
new (`steps`). Promise: every record counts in exactly one window.
"""

from __future__ import annotations

from topicd.spark.pipelines import place
from topicd.spark.pipelines.report import Progress, Report, no_progress
from topicd.spark.pipelines.rollup.batch import run_batch
from topicd.spark.pipelines.rollup.options import AVAILABLE, CONTINUOUS, Options, check
from topicd.spark.pipelines.rollup.steps import run_steps
from topicd.spark.pipelines.session import LazySpark
from topicd.words import counted

__all__ = ["AVAILABLE", "CONTINUOUS", "Options", "run"]


def run(spark: LazySpark, options: Options, progress: Progress = no_progress) -> Report:
    check(options)
    client = place.client(options.place)
    states = {name: client.state(name, touch=False) for name in place.resolve(client, options.topics)}
    if options.dry_run:
        report = Report("rollup", ("topic", "records"), dry_run=True)
        report.rows = [{"topic": name, "records": state.count} for name, state in states.items()]
        report.summary = f"would roll up {counted(sum(state.count for state in states.values()), 'record')}"
        return report
    if options.stream is not None:
        return run_steps(spark, options, list(states), progress)
    return run_batch(spark, options, states, progress)
