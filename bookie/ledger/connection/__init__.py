"""A client's connections to bookies, and the calls that machines ask for."""
