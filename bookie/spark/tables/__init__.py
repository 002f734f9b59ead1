"""Tables about the cluster: ``option("table", …)``.

The process that plans the query lists the metadata store once, and passes the rows to a few tasks.
Only the table ``audit`` reads from bookies. A frame shows the state of the cluster at the frame's
first action; load the frame again to see changes.

| module | what it holds |
|---|---|
| `columns` | the columns of each table |
| `options` | the options of a read, checked |
| `rows` | converts records of the metadata store to rows, without I/O |
| `reading` | the reader that Spark calls |
"""
