"""Topics as a Spark data source, `format("topicd")`: batch and stream, read and write. Reference: docs/spark.md."""
