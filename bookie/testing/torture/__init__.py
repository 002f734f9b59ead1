"""Repeatedly breaks a local cluster while clients use a log: ``bookie torture``.

| module | content |
|---|---|
| `run` | the cluster, its faults and the writer processes |
| `writer` | the program of a writer process |
| `clients` | readers, consumers and members of a group |
| `judge` | the rules for the reports of all clients |
"""
