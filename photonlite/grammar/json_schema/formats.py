"""Formats of strings as patterns: as strict as their standards, and with one way to spell what has several."""

_DAY_OF_ANY_YEAR = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_LEAP_YEAR = "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
_DATE = f"(?:[1-9][0-9]{{3}}-{_DAY_OF_ANY_YEAR}|{_LEAP_YEAR}-02-29)"
_CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = f"{_CLOCK}:[0-5][0-9](?:\\.[0-9]{{1,6}})?(?:Z|[+-]{_CLOCK})"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL = "[a-z0-9](?:[a-z0-9-]{0,28}[a-z0-9])?"
_NUMBER = "(?:0|[1-9][0-9]{0,5})"

FORMATS = {
    # RFC 3339, from the year 1000 on and without leap seconds.
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    # ISO 8601 as RFC 3339 has it in its appendix A, down to seconds.
    "duration": f"P(?:{_NUMBER}W|{_NUMBER}D(?:T{_NUMBER}H{_NUMBER}M{_NUMBER}S)?"
    f"|T{_NUMBER}H(?:{_NUMBER}M(?:{_NUMBER}S)?)?|T{_NUMBER}M(?:{_NUMBER}S)?|T{_NUMBER}S)",
    # RFC 4122.
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    # RFC 2673, section 3.2.
    "ipv4": f"{_BYTE}(?:\\.{_BYTE}){{3}}",
    # A part of RFC 5321: names without quotes, and hosts by name.
    "email": f"[a-z0-9_+-]+(?:\\.[a-z0-9_+-]+){{0,3}}@{_LABEL}(?:\\.{_LABEL}){{0,3}}\\.[a-z]{{2,12}}",
}
"""Name to pattern, in the dialect of `regex`."""
