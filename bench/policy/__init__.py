"""What the scheduler makes of load, on a device that is a table of times: rates and waits in seconds of a CPU."""
