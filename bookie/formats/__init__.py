"""Bytes to frozen values and back: entries, blocks, index pages, metadata records.

Nothing here does I/O, reads a clock or logs. Every decoder takes arbitrary bytes and either returns
a value or raises from :class:`bookie.errors.CorruptionError` (or
:class:`bookie.errors.BadRequestError` where the bytes came from a caller).
"""
