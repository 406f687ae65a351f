"""How prompts of several rows on one axis are cut for attention: tiles of consecutive queries of one row. No torch.

```
tile   row  first query  count  position of the first  leading positions of the row that see each other
```

Counts of 0 stand for tiles without work.
"""

QUERY_TILE = 64
"""Queries of a tile at most."""

TILE_COLUMNS = 5
"""Columns of a tile."""
