"""Decoding of untrusted images in processes with limits of CPU time and memory."""
