"""The bookie's side of the wire: its calls and its streams, which all carriers share."""
