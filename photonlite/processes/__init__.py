"""Worker processes with limits, which may be killed at any time: for hostile images and for grammars."""
