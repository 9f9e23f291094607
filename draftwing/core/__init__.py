"""What every room may use: errors, settings, provenance, console, statistics. No torch here."""
