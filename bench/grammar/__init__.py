"""Grammars: what compiling, masks and constrained decoding cost, beside other libraries in the same run."""
