"""The runner: all device work happens here."""
