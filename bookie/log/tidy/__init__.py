"""What goes, and when: retention, truncation, deletion, sweep."""
