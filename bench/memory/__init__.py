"""Which router keeps short memory busy without thrashing, on a device that is a table of times."""
