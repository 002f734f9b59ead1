"""The bytes of an entry: header, payload, digest; batches of entries; checksums. Pure.

A decoder takes arbitrary bytes. It returns a value or raises from
:class:`bookie.errors.CorruptionError`, or :class:`bookie.errors.BadRequestError` if the bytes came
from a caller.
"""
