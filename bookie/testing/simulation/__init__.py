"""Simulates whole clusters and their clients in one process, in virtual time, from a seed.

Client, wire protocol, node and engine are the real code. Only gRPC, the metadata servers, clocks
and machines are simulated. `simulate` runs a user's function in the simulation. The tests of bookie
itself use the other modules directly.

| module | content |
|---|---|
| `simulate` | runs a user's function on a cluster with faults |
| `loop`, `workers` | an event loop in virtual time, in a seeded order; threads |
| `platter`, `disk`, `disk_faults`, `store` | a device, power cuts, files, the index |
| `machine` | one life of a process: clock, nonces, boot id |
| `simulated_network`, `simulated_calls` | connections, cuts and resets; calls like those of gRPC |
| `simulated_cluster` | bookies started like the daemon's, clients, sessions that lose replies |
| `cluster_faults` | the kinds of faults |
| `seeded_world` | random numbers, clocks and ids, all from the seed |
"""
