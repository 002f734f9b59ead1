"""Jobs on Spark: each is a function here, and a command ``bookie spark …``.

| module | what it does |
|---|---|
| `audit` | reads and verifies every copy of every entry |
| `repair` | copies what an audit found missing or corrupt |
| `export` | what is new in a log as Parquet |
| `ingest` | files into a transactional log |
| `ingest_plan` | which files it reads, and how |
| `file_rows` | their rows, each file by its own header or schema |
| `migrate` | topics of Kafka into transactional logs |
| `moving` | what both share: batches, the quarantine, counts |
| `reasons` | why a text does not fit a schema |
| `compact` | joins many small ledgers of a log into few |
| `stats` | sizes, rates and skew |
| `pictures` | pages and pictures of reports; pure |
"""
