"""Tables about the cluster: ``option("table", …)``.

The planner lists the metadata store once, and passes the rows to the tasks in a few partitions.
Only the table ``audit`` asks bookies. A frame shows the cluster as of its first action; load the
frame again to see changes.

| module | what it holds |
|---|---|
| `columns` | the columns of each table |
| `options` | the options of a read, checked |
| `rows` | rows from the records of the store; pure |
| `reading` | the reader that Spark calls |
"""
