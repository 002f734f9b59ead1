"""Transactional logs: many writers write ranges, and one transaction publishes a whole batch."""
