"""Columns of what a row's choice is told and of what it answers: rows of int32, floats as their bits. No torch.

```
choice   forced  coordinate  size  end  ties  temperature  top_p  u0  u1  u2         ids: -1 for none
result   id  bin0  bin1  finite  probability  mass0  mass1                           bins: -1 for none
pending  id  bin0  bin1                                                              what the next step embeds
```
"""

FORCED, COORDINATE, SIZE, END, TIES, TEMPERATURE, TOP_P, U0, U1, U2 = range(10)
"""Columns of a choice.

Where a position decides between `end` and other ids, one of those that is smaller than `TIES` wins a tie with `end`.
`U0` is the random number for the id, `U1` for a coordinate or a width, `U2` for a height.
"""

CHOICE_COLUMNS = 10
"""Columns of a choice, all of them."""

ID, BIN0, BIN1, FINITE, PROBABILITY, MASS0, MASS1 = range(7)
"""Columns of a result."""

RESULT_COLUMNS = 7
"""Columns of a result, all of them."""

PENDING_COLUMNS = 3
"""Columns of a result that are pending: the first ones."""
