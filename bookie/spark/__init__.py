"""Logs and ledgers in Spark: a source, a sink, tables about the cluster, and jobs.

::

    spark.read.format("bookkeeper").option("metadata", "etcd://…").option("log", "orders").load()

Spark calls the source and the sink in several processes: the driver's script, planners, the runner
of a stream, and workers. An import of the package starts no thread and no client. Each process
makes one client (`bookie.sync.shared_client`) at the first use.

| module | content |
|---|---|
| `source` | the source with the name ``bookkeeper`` |
| `options` | checks of the options that Spark passes |
| `connecting` | the client of this process |
| `source_options`, `selection`, `read_bounds` | the options of a read: logs, start, end |
| `columns` | the columns of a read; records → Arrow |
| `splits`, `stream_offsets` | division of a read into tasks; offsets of a stream as JSON |
| `batch_source`, `stream_source` | readers that Spark calls to plan and to read |
| `sink_options`, `sink_rows` | the options of a write; rows → records |
| `sink_task`, `task_writers` | one attempt of a task; ledgers that stay open between tasks |
| `sinks`, `sink_publishing` | writers that Spark calls; publish and abort |
| `tables` | tables about the cluster |
| `jobs`, `session` | jobs, and the sessions of the command line |
| `executors` | checks before a job starts |
| `package` | this package as a zip file |
| `requirements` | the check of the libraries that the Spark integration needs |
"""

from bookie.spark.requirements import require_spark

require_spark()
