"""Jobs on Spark; each job is a function in this package, and a command ``bookie spark …``.

| module | what it does |
|---|---|
| `audit` | reads and verifies every copy of every entry |
| `repair` | copies entries that an audit found missing or corrupt |
| `export` | writes new records of a log as Parquet |
| `export_target` | checks that a target belongs to an export |
| `ingest` | writes files into a transactional log |
| `ingest_plan` | the settings of `ingest` |
| `file_rows` | reads the rows of files, each file by its own header or schema |
| `migrate` | writes topics of Kafka into transactional logs |
| `moving` | the common part of `ingest` and `migrate`: batches, the quarantine, counts |
| `reasons` | finds the reason why a text does not fit a schema |
| `compact` | joins many small ledgers of a log into few |
| `stats` | sizes, rates and skew |
| `prepare` | archives Spark's Java classes, so that jobs start faster |
| `marks`, `small_files` | files in targets and checkpoints that name their job |
| `pictures` | makes pages and pictures of reports, without I/O |
"""
