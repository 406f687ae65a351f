"""The GPU bubble: blocking against pipelined decoding on one engine, with nothing changed but the depth."""
