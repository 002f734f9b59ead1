"""Simulate whole clusters and their clients in one process, in virtual time, from a seed.

Client, wire protocol, node and engine are the real ones. Only gRPC, the metadata server, the clocks
and the machines are simulated. `simulate` runs a user's own code in the simulation. This project's
own tests have workloads and checkers of their own.

| module | what it holds |
|---|---|
| `simulate` | one function of a user, run on a cluster with faults |
| `loop`, `workers` | an event loop in virtual time, in an order of the seed; threads |
| `platter`, `disk`, `disk_faults`, `store` | a device and its losses; files; the index |
| `machine` | one life of a process: clock, nonces, boot id |
| `simulated_network`, `simulated_calls` | connections, cuts and resets; calls as gRPC has them |
| `simulated_cluster` | bookies as the daemon starts them, clients, sessions that lose replies |
| `cluster_faults` | the kinds of faults |
| `seeded_world` | chance, clocks and ids of the product, all from the seed |
"""
