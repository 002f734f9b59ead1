"""A local cluster that is broken again and again under a log: ``bookie torture``.

| module | what it holds |
|---|---|
| `run` | the cluster, its faults and the processes that write |
| `writer` | the program of such a process |
| `clients` | readers, consumers and members of a group |
| `judge` | the rules on what all of them were told and saw |
"""
