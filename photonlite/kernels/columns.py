"""Columns of int32 tables that host and kernels share; floats are stored as their bits. No torch.

```
sampling params   forced  coordinate  size  end  ties  temperature  top_p  u0  u1  u2  top_k  penalty    ids: -1: none
result            id  bin0  bin1  finite  probability  mass0  mass1                                    bins: -1: none
pending           id  bin0  bin1                                                            what the next step embeds
tile              row  first query  count  position of the first  leading positions of the row that see each other
```

Prompts of several rows on one axis are cut into tiles of consecutive queries of one row; a count of 0 is an empty tile.
"""

FORCED, COORDINATE, SIZE, END, TIES, TEMPERATURE, TOP_P, U0, U1, U2, TOP_K, PENALTY = range(12)
"""Columns of sampling params.

Where a position decides between `end` and other ids, one of those that is smaller than `TIES` wins a tie with `end`.
`U0` is the random number for the id, `U1` for a coordinate or a width, `U2` for a height. `TOP_K` is 0 for no limit.
`PENALTY` is 1 for none.
"""

PARAM_COLUMNS = 12

ID, BIN0, BIN1, FINITE, PROBABILITY, MASS0, MASS1 = range(7)  # columns of a result
RESULT_COLUMNS = 7

PENDING_COLUMNS = 3  # the first columns of a result are those of the pending table
QUERY_TILE = 64  # queries of a tile at most
TILE_COLUMNS = 5
