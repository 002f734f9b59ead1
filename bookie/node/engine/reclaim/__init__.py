"""Space given back: files that are mostly dead hand on what is alive, and go."""
