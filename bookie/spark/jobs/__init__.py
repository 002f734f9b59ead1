"""Jobs on Spark: each is a function here, and a command ``bookie spark …``.

| module | what it does |
|---|---|
| `audit` | reads and verifies every copy of every entry |
| `repair` | copies what an audit found missing or corrupt |
| `export` | what is new in a log as Parquet |
| `ingest` | files, or topics of Kafka, into a transactional log |
| `compact` | joins many small ledgers of a log into few |
| `stats` | sizes, rates and skew |
| `pictures` | pages and pictures of reports; pure |
"""
