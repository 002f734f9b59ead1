"""The journal, in which every entry becomes durable first."""
