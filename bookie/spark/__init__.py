"""Logs and ledgers in Spark: a source, a sink, tables about the cluster, and jobs.

::

    spark.read.format("bookkeeper").option("metadata", "etcd://…").option("log", "orders").load()

Spark calls this package in several processes. The driver's script never runs it: planners, the
runner of a stream, and workers do. So nothing starts at import, and each process has one client
(`bookie.sync.shared_client`), made at first use.

| module | what it holds |
|---|---|
| `source` | what Spark finds under the name ``bookkeeper`` |
| `options` | options as Spark gives them, checked |
| `connecting` | the client of this process |
| `source_options`, `selection`, `places` | what a read asks for: of what, from where to where |
| `columns` | the columns of what is read; records → Arrow |
| `splits`, `stream_offsets` | cutting the work; offsets in one form |
| `batch_source`, `stream_source` | what Spark calls to plan and to read |
| `sink_options`, `sink_rows` | what a write asks for; rows → records |
| `sink_task`, `task_writers` | one attempt of a task; ledgers that stay open between tasks |
| `batch_sink`, `stream_sink`, `sink_publishing` | what Spark calls to write, publish and abort |
| `tables` | tables about the cluster |
| `jobs`, `session` | jobs, and the sessions that the command line runs them in |
| `executors` | what a job looks at before it starts |
| `package` | this package as a zip |
| `requirements` | which of Spark's libraries it needs; checked when it is imported |
"""

from bookie.spark.requirements import require_spark

require_spark()
