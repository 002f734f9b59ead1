"""The bytes of an entry: header, payload, digest; batches of entries; checksums.

This room does no I/O. A decoder takes arbitrary bytes. A decoder returns a value or raises a
subclass of :class:`bookie.errors.CorruptionError`, or :class:`bookie.errors.BadRequestError` if the
bytes came from a caller.
"""
