"""The carrier by frames: length-prefixed messages on TCP or TLS, one connection for each stream.

`format` defines the bytes. `connection` contains the code that both ends share. `server` and
`client` are the two ends.
"""
