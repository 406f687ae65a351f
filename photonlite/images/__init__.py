"""Images: from whatever the caller holds to 8-bit RGB, and on to the crops that the encoder reads.

`decode.py` opens and checks, `rgb.py` converts modes and arrays, `crops.py` tiles, `resize.py` and
`crew.py` share the work among threads.
"""
