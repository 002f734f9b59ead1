"""Tables about the cluster: ``option("table", …)``.

The planner lists the metadata store once, and the rows travel in a few partitions. No bookie is
asked, but for ``audit``. A frame shows the cluster as of its first action; load it again to see
changes.

| module | what it holds |
|---|---|
| `columns` | the columns of each table |
| `rows` | rows from the records of the store; pure |
| `reading` | the reader that Spark calls |
"""
