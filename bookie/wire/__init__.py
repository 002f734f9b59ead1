"""Messages between clients and bookies, their encoding, and deadlines of calls.

`codec` builds and parses the frequent messages itself; `unary_codec` uses generated protobuf code
for the rare messages. The packages `grpc` and `frames` carry all messages. `client` and `server`
are the two ends, which do not depend on a carrier.
"""
