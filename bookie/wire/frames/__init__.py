"""The carrier by frames: messages with a length, on TCP or TLS, one connection for each stream.

`format` has the bytes, `connection` what both ends share, `server` and `client` the two ends.
"""
