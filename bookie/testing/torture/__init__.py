"""Break a local cluster again and again while clients use a log: ``bookie torture``.

| module | what it holds |
|---|---|
| `run` | the cluster, its faults and the processes that write |
| `writer` | the program of such a process |
| `clients` | readers, consumers and members of a group |
| `judge` | the rules on what all of them were told and saw |
"""
