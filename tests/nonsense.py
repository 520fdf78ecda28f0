"""Contents that no document in JSON of ours has: whoever reads one must refuse them, or pass over them."""

NONSENSE = {
    "nothing": b"",
    "an open brace": b"{",
    "a list": b"[]",
    "a number": b"7",
    "null": b"null",
    "too deep": b"[" * 100_000,
    "too many digits": b'{"ttl_s": ' + b"9" * 5_000 + b"}",
    "deep in a field": b'{"limit_bytes": ' + b"[" * 500 + b"]" * 500 + b"}",
    "no text": b"\xff\xfe",
    "blanks": b" " * 9_000,
}
