"""``bookie torture``: disturbs a local cluster again and again while clients use a log.

| module | content |
|---|---|
| `run` | the cluster, its faults and the writer processes |
| `writer` | the program of a writer process |
| `clients` | readers, consumers and members of a group |
| `judge` | the rules for the reports of all clients |
"""
