"""A client's connections to bookies, and the calls that the state machines request."""
