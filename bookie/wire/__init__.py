"""Messages between clients and bookies, their encoding, and deadlines of calls.

`codec` builds and parses the frequent messages itself; generated protobuf code handles the rare
messages. The package `grpc` transports both kinds.
"""
