"""The bytes of an entry (header, digest, payload), batches of entries, and checksums.

This package does no I/O. The decoders in this package accept arbitrary bytes: they return a value
or raise a subclass of :class:`bookie.errors.CorruptionError`. If the bytes came from a client's
request, the decoders raise :class:`bookie.errors.BadRequestError` instead.
"""
